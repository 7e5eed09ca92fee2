"""Carries out operations on a node by calls to a process of the harness, such as the node's init process."""

from __future__ import annotations

import abc
import contextlib
import pathlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from harness.backends.contract import Node, Verb
from harness.errors import BackendError, NodeGone, UsageError
from harness.node import gpu_health, skew
from harness.node.types import CpuUse, GpuReading, MemoryUse, ProcessState, RdmaDevices

CALL_S_MAX = 10.0
FILL_S_MAX = 40.0


def refused_libraries() -> dict[Verb, str]:
    """Returns the operations that fail because a preloaded library (for clocks or GPUs) does not work on this machine,
    each with the reason."""
    found = {Verb.CLOCK: skew.why_not(), Verb.GPU: gpu_health.why_not()}
    return {verb: reason for verb, reason in found.items() if reason}


class Caller(Protocol):
    """A connection to a process of the harness that acts on nodes. Once `ended` is True, all disturbances by this
    process are undone."""

    @property
    def ended(self) -> bool: ...

    def call(self, method: str, limit_s: float = ..., **params: Any) -> Any: ...


class NodeBase(Node):
    """The base class of nodes on which a process of the harness carries out most operations. A backend implements
    `_call`, which sends an operation to the process."""

    def __init__(self, name: str, index: int, incarnation: int, run_dir: pathlib.Path):
        self.name, self.index, self.incarnation, self.address = name, index, incarnation, ""
        self._run_dir = run_dir

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Raises `NodeGone` if the node is gone before the `with` block, or after a `BackendError` in the block."""
        if not self.alive:
            raise NodeGone(f"node {self.key} is gone")
        try:
            yield
        except BackendError as error:
            if self.alive:
                raise
            raise NodeGone(f"node {self.key} is gone") from error

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @abc.abstractmethod
    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        """Calls the harness's process that acts on the node. Raises `NodeGone` if the node is gone."""

    def pids(self) -> list[int]:
        return self._listed("pids")

    def processes(self) -> list[ProcessState]:
        return [ProcessState(**each) for each in self._listed("states")]

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        if pid is not None and pid <= 1:
            raise UsageError(f"process {pid} cannot be signalled: give the id of a process on the node, above 1")
        return int(self._call("signal", signum=int(signum), pid=pid))

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def notice(self, provider: str, in_s: float) -> None:
        self._call("notice", provider=provider, in_s=in_s)

    def notice_seen(self) -> int:
        return int(self._call("notice_seen"))

    def throttle(self, share: float | None) -> None:
        self._call("throttle", share=share)

    def crowd(self, kind: str, load: float | None) -> None:
        self._call("crowd", kind=kind, load=load)

    def cpu_use(self) -> CpuUse:
        return CpuUse(**self._call("cpu_use"))

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        if keeper == "kernel":
            raise self._missing(Verb.MEMORY_KERNEL)
        self._call("watch_memory", limit_bytes=limit_bytes)
        return "" if limit_bytes is None else "watchdog"

    def memory_use(self) -> MemoryUse:
        return MemoryUse(**self._call("memory_use"))

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        return int(self._call("fill_memory", FILL_S_MAX, size_bytes=size_bytes, spare=spare))

    def doom(self, pid: int) -> None:
        self._call("doom", pid=pid)

    def skew_clock(self, offset_s: float) -> None:
        skew.set_offset(self._run_dir, self.name, offset_s)

    def set_gpu_health(self, gpu: int, health: Mapping[str, int]) -> None:
        gpu_health.set_health(self._run_dir, self.name, gpu, health)

    def watch_gpus(self, pid: int | None) -> str | None:
        visible: str | None = self._call("watch_gpus", pid=pid)
        return visible

    def gpus(self) -> GpuReading:
        return GpuReading(**self._call("gpus"))

    def rdma(self) -> RdmaDevices | None:
        found = self._call("rdma")
        return RdmaDevices(tuple(found["devices"]), found["gpus"])

    def _listed(self, method: str) -> list[Any]:
        try:
            found: list[Any] = self._call(method)
        except NodeGone:
            return []
        return found
