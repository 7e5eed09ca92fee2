"""Defines a node of a Slurm job. A helper process in the job's allocation performs most operations on the node."""

from __future__ import annotations

import pathlib
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol

from harness.backends import clock_offset
from harness.backends.contract import ClockReading, Node
from harness.backends.network_calls import NetworkedNode
from harness.backends.node_base import CALL_S_MAX
from harness.backends.slurm.job_network import JobNetwork
from harness.backends.slurm.step_line import StepLine
from harness.backends.storage_calls import StoringNode
from harness.errors import UsageError

STORAGE_S_MAX = 15.0  # the helper itself waits for the file system to come up


class NodeCluster(Protocol):
    run_dir: pathlib.Path
    network: JobNetwork

    def helper(self, node: SlurmNode) -> StepLine: ...
    def take_down(self, node: SlurmNode) -> None: ...
    def evict(self, node: SlurmNode) -> None: ...


class SlurmNode(NetworkedNode, StoringNode):
    """One incarnation of a node of the job, from one start of the Slurm job to the next. `host` is the name of the
    Slurm host on which the node runs, or an empty text before its start."""

    def __init__(self, cluster: NodeCluster, index: int, incarnation: int):
        super().__init__(f"node{index}", index, incarnation, cluster.run_dir)
        self.host, self.gone = "", False
        self._cluster, self._lab = cluster, cluster.network
        self._line: StepLine | None = None
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        return bool(self.host) and not self.gone

    notice, notice_seen = Node.notice, Node.notice_seen  # its metadata endpoint is not ours

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        """Sends a signal to the run's process `pid` on this node or, by default, to all of the run's processes
        there."""
        return int(self._call("signal", signum=int(signum), pid=pid))

    def kill(self) -> None:
        self._cluster.take_down(self)

    def evict(self, grace_s: float) -> None:
        """Makes Slurm take the node away. Ignores `grace_s`, because the site's Slurm configuration sets the grace time
        (GraceTime, KillWait)."""
        self._cluster.evict(self)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        if limit_bytes is not None and keeper == "kernel":
            raise UsageError(f"node {self.key}: on Slurm no memory limit is kept by the kernel for us")
        return super().limit_memory(limit_bytes, keeper)

    def clock(self) -> ClockReading:
        ask: Callable[[], int] = lambda: int(self._call("clock"))  # noqa: E731 (its type is the point)
        ask()  # the first one starts the helper
        assert self._line is not None
        return clock_offset.compare(str(self._line.ready["host"]), ask)

    def _storage(self) -> StorageHelper:
        with self.there():
            return StorageHelper(self, self._helper())

    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        with self.there():
            return self._helper().call(method, limit_s, **params)

    def _helper(self) -> StepLine:
        with self._lock:
            if self._line is None or self._line.ended:
                self._line = self._cluster.helper(self)
            return self._line


class StorageHelper:
    """The helper process that makes file operations on a Slurm node slow or failing. A storage disturbance ends as soon
    as the helper, the connection to it or the node ends."""

    def __init__(self, node: SlurmNode, line: StepLine):
        self._node, self._line = node, line

    @property
    def ended(self) -> bool:
        return self._line.ended or not self._node.alive

    def call(self, method: str, limit_s: float = STORAGE_S_MAX, **params: Any) -> Any:
        with self._node.there():
            return self._line.call(method, limit_s, **params)
