"""Defines a node that is a container. The Docker engine, or the harness's init process in the container, carries out
the acts on the node."""

import math
import pathlib
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends import clock_offset
from harness.backends.cluster_base import Box
from harness.backends.contract import ClockReading, Exit
from harness.backends.docker import request
from harness.backends.docker.container_line import ContainerLine
from harness.backends.docker.engine import Engine, speaking
from harness.backends.network_calls import NetworkedNode
from harness.backends.node_base import CALL_S_MAX
from harness.backends.run_folder import CONTROL
from harness.backends.sidecar_network import Network
from harness.backends.storage_calls import StoringNode
from harness.errors import BackendError, UsageError
from harness.node import rpc
from harness.node.container_storage import Storage
from harness.node.types import CpuUse, ProcessState

KILL_S_MAX = 15.0
PERIOD_US = 50_000  # of a CPU quota; shorter than the kernel's 100 ms, as a training step often is
QUOTA_US_MIN = 1_000  # the kernel takes no less


class DockerNode(NetworkedNode, StoringNode):
    """A node that is a container, with the connection to the harness's init process in it. The queue `exits` gets an
    entry when the node's command ends."""

    def __init__(self, engine: Engine, place: request.DockerRun, name: str, incarnation: int, exits: Box[Exit]):
        index = int(name.removeprefix("node")) if name != CONTROL else -1
        super().__init__(name, index, incarnation, pathlib.Path(place.run_dir))
        self._engine, self._place, self._exits = engine, place, exits
        self._gone = threading.Event()
        self._running = 0  # which start of its command, while that runs
        self._frozen_pids: list[int] | None = None
        self._file_systems: Storage | None = None

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    @property
    def command_runs(self) -> bool:
        return self._running > 0

    def kill_command(self) -> None:
        self.signal(signal.SIGKILL)

    @property
    def metadata(self) -> str:
        return "{}:{}".format(*self._line.ready["metadata"])

    def create(self, wanted: request.Request, network: Network) -> None:
        self._lab: Network = network
        name = self._place.container(self.name, self.incarnation)
        errors = self._run_dir / "logs" / f"{self.key}.init.log"
        self._line = ContainerLine(self._engine, name, wanted, errors, self._on_event, self._on_end)
        self.container = self._line.container

    def come_up(self, mounts: Sequence[str]) -> None:
        """Waits until the harness's init process in the container answers. `mounts` are folders whose storage can be
        disturbed."""
        self._line.come_up()
        state = self._engine.inspect(self.container)
        self.address = str(state["NetworkSettings"]["Networks"][self._place.network]["IPAddress"])
        if mounts:
            folders = [self._run_dir / mount for mount in mounts]
            log, pid = self._run_dir / "logs" / f"{self.key}.storage.log", int(state["State"]["Pid"])
            self._file_systems = Storage(pid, folders, self._place.user, self.marks(self.incarnation), log)

    def marks(self, start: int) -> dict[str, str]:
        return {"CHAOS_NODE": self.name, "CHAOS_INCARNATION": str(start), "CHAOS_RUN_ID": self._place.run_id}

    def _storage(self) -> Storage:
        if self._file_systems is None:
            raise UsageError("the workload has no mounts: no storage of its nodes can be disturbed")
        return self._file_systems

    def run(self, command: tuple[str, ...], env: Mapping[str, str], log: pathlib.Path, start: int) -> None:
        self._running = start
        self._call("run", command=list(command), env=dict(env), log=str(log))

    def disconnect(self) -> None:
        """Ends the connection to the container's init process, and thereby the node. After the disconnection, the end
        of the node's command is not reported."""
        self._running = 0
        if hasattr(self, "_line"):
            self._line.close()
        if self._file_systems is not None:
            self._file_systems.close()

    def pids(self) -> list[int]:
        if self._frozen_pids is not None and self.alive:
            return self._frozen_pids  # its init is frozen, too, and nothing there can have changed
        return super().pids()

    def processes(self) -> list[ProcessState]:
        if self._frozen_pids is not None and self.alive:
            return [ProcessState(pid, "T", 0) for pid in self._frozen_pids]
        return super().processes()

    def kill(self) -> None:
        with self.there(), speaking(f"killing node {self.key}"):
            self._engine.api.kill(self.container, "SIGKILL")
            # The engine tells that the container has ended once the kernel has ended every process in it.
            self._engine.api.wait(self.container, timeout=KILL_S_MAX, condition="not-running")
        if not self._gone.wait(KILL_S_MAX):
            raise BackendError(f"node {self.key} is still there {KILL_S_MAX:g} s after SIGKILL")

    def freeze(self) -> None:
        if self._frozen_pids is None:
            self._frozen_pids = self.pids()
            with self.there(), speaking(f"freezing node {self.key}"):
                self._engine.api.pause(self.container)

    def thaw(self) -> None:
        if self._frozen_pids is not None:
            with self.there(), speaking(f"thawing node {self.key}"):
                self._engine.api.unpause(self.container)
            self._frozen_pids = None

    def evict(self, grace_s: float) -> None:
        """Evicts the node by `docker stop`: the init process passes SIGTERM on to all processes, and SIGKILL follows
        after the grace period."""
        with self.there():
            threading.Thread(target=self._stop, args=(math.ceil(grace_s),), daemon=True).start()

    def limit_cpu(self, cpus: float | None) -> None:
        if cpus is not None and not cpus > 0:
            raise UsageError(f"a quota of {cpus} CPUs; it must be above 0")
        quota_us = -1 if cpus is None else max(QUOTA_US_MIN, round(cpus * PERIOD_US))
        self._update(cpu_period=PERIOD_US, cpu_quota=quota_us)

    def cpu_use(self) -> CpuUse:
        use = super().cpu_use()
        with speaking(f"asking for the statistics of node {self.key}"):
            statistics = self._engine.api.stats(self.container, stream=False, one_shot=True)
        quota_ns = statistics["cpu_stats"].get("throttling_data", {}).get("throttled_time", 0)
        return CpuUse(use.used_ns, use.throttled_ns + quota_ns, use.at_ns)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        if limit_bytes is not None and limit_bytes > 0 and keeper != "watchdog":
            self._update(mem_limit=limit_bytes, memswap_limit=limit_bytes)
            return "kernel"
        who = super().limit_memory(limit_bytes)
        if limit_bytes is None:
            everything = int(self._engine.info["MemTotal"])  # the engine knows no way back to "no limit"
            self._update(mem_limit=everything, memswap_limit=everything)
        return who

    def clock(self) -> ClockReading:
        """Compares the wall clock of the Docker daemon's host with the harness's wall clock. No fault shifts the clock
        of the Docker daemon's host."""
        return clock_offset.compare(self.name, lambda: int(self._call("clock")))

    def _update(self, **limits: int) -> None:
        with self.there(), speaking(f"limiting node {self.key}"):
            self._engine.api.update_container(self.container, **limits)

    def _stop(self, grace_s: int) -> None:
        try:
            with speaking(f"evicting node {self.key}"):
                self._engine.api.stop(self.container, timeout=grace_s)
        except BackendError:
            if self.alive and self.command_runs:  # else the run has ended meanwhile, and took the node with it
                raise

    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        with self.there():
            return self._line.call(method, limit_s, **params)

    def _on_event(self, event: rpc.Message) -> None:
        if event["event"] == "exit":
            self._note_exit(event["code"])

    def _on_end(self) -> None:
        self._note_exit(-signal.SIGKILL)
        self._frozen_pids = None
        self._gone.set()
        self._lab.forget(self.key)

    def _note_exit(self, code: int) -> None:
        start, self._running = self._running, 0
        if start:
            self._exits.append(Exit(self.name, start, code))
