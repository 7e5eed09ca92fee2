"""A pod that answers, and the node that it is to the harness."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from harness.backends.agent import skew
from harness.backends.agent.types import Arrivals, CpuUse, Impairment, MemoryUse, ProcessState, StorageRule
from harness.backends.contract import Disturbance, Node, Traffic, Verb
from harness.backends.kubernetes import mesh
from harness.backends.kubernetes.manifests import Object
from harness.backends.kubernetes.mesh import Mesh, Way
from harness.backends.kubernetes.pod_line import PodLine
from harness.backends.run_folder import CONTROL
from harness.errors import BackendError, NodeGone, UsageError

CALL_S_MAX = 10.0
BEAT_S_MAX = 5.0
FILL_S_MAX = 40.0
CLOCK_TRIES = 8
PACKET_BYTES = 64


@dataclass(frozen=True)
class Clock:
    """A pod's clocks minus ours. The truth is within `uncertainty_ns` of both."""

    wall_offset_ns: int
    mono_offset_ns: int
    uncertainty_ns: int


class Pod:
    """A pod with the line to its init. `running` is which start of the command runs there; 0: none.

    `node` is the node it is to be, as it was when only our init ran there.
    """

    def __init__(self, wanted: Object, line: PodLine):
        self.name: str = wanted["metadata"]["name"]
        self.uid: str = wanted["metadata"]["uid"]
        self.machine: str = wanted["spec"].get("nodeName", "")
        self.line, self.hello = line, line.hello
        self.address: str = self.hello["address"]
        self.node = CONTROL if self.hello["role"] == CONTROL else f"node{int(self.hello['index'])}"
        self.running = 0
        self._heard_s = time.monotonic()

    def beat(self, silent_s_max: float) -> None:
        """Says that the harness is there. A pod that has not answered for so long is lost: it would have ended itself
        by then, so its machine is gone, and nothing will ever close the line."""
        try:
            self.call("beat", BEAT_S_MAX)
            self._heard_s = time.monotonic()
        except BackendError:
            if not self.ended and time.monotonic() - self._heard_s > silent_s_max:
                self.line.close()

    @property
    def ended(self) -> bool:
        return self.line.ended

    @property
    def command_runs(self) -> bool:
        return self.running > 0

    def kill_command(self) -> None:
        self.call("signal", signum=int(signal.SIGKILL), pid=None)

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        """Raises `NodeGone` when the pod has ended, also while it was asked."""
        if self.ended:
            raise NodeGone(f"pod {self.name} is gone")
        try:
            return self.line.call(method, limit_s, **params)
        except BackendError as error:
            if self.ended:
                raise NodeGone(f"pod {self.name} is gone") from error
            raise

    def run(self, start: int, command: tuple[str, ...], env: dict[str, str], name: str) -> None:
        self.running = start
        self.call("run", 30.0, command=list(command), env=env, name=name)

    def read_clock(self) -> Clock:
        """By the quickest of some questions: the answer was given between the asking and the hearing."""
        best: Clock | None = None
        for _ in range(CLOCK_TRIES):
            wall_ns, asked_ns = time.time_ns(), time.monotonic_ns()
            there = self.call("clock")
            half_ns = (time.monotonic_ns() - asked_ns) // 2
            if best is None or half_ns < best.uncertainty_ns:
                best = Clock(there["wall_ns"] - wall_ns - half_ns, there["mono_ns"] - asked_ns - half_ns, half_ns)
        assert best is not None, "asked at least once"
        return best


class Owner(Protocol):
    """What a node asks of its cluster."""

    mesh: Mesh
    run_dir: pathlib.Path

    def kill(self, node: KubeNode) -> None: ...
    def evict(self, node: KubeNode, grace_s: float) -> None: ...
    def pod_of(self, peer: Node | None) -> Pod: ...
    def clock_of(self, pod: Pod) -> Clock: ...
    def others(self, node: KubeNode) -> list[Pod]: ...


class KubeNode(Node):
    """One place of the job in one incarnation; `pod` is `None` until there is one."""

    def __init__(self, owner: Owner, index: int, incarnation: int, pod: Pod | None):
        self.name = f"node{index}"
        self.index = index
        self.incarnation = incarnation
        self.pod = pod
        self.address = pod.address if pod else ""
        self.end_reason = "the pod has ended"
        self._owner = owner

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        return self.pod is not None and not self.pod.ended

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        if self.pod is None:
            raise NodeGone(f"{self.key} is not there yet")
        return self.pod.call(method, limit_s, **params)

    def pids(self) -> list[int]:
        try:
            found: list[int] = self.call("pids")
        except NodeGone:
            return []
        return found

    def processes(self) -> list[ProcessState]:
        try:
            return [ProcessState(**each) for each in self.call("states")]
        except NodeGone:
            return []

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        if pid is not None and pid <= 1:
            raise UsageError(f"process {pid} cannot be signalled: give the id of a process on the node, above 1")
        count: int = self.call("signal", signum=int(signum), pid=pid)
        return count

    def kill(self) -> None:
        self._owner.kill(self)

    def freeze(self) -> None:
        self.call("signal", signum=int(signal.SIGSTOP), pid=None)

    def thaw(self) -> None:
        self.call("signal", signum=int(signal.SIGCONT), pid=None)

    def notice(self, provider: str, in_s: float) -> None:
        self.call("notice", provider=provider, in_s=in_s)

    def notice_seen(self) -> int:
        count: int = self.call("notice_seen")
        return count

    def evict(self, grace_s: float) -> None:
        self._owner.evict(self, grace_s)

    def throttle(self, share: float | None) -> None:
        self.call("throttle", share=share)

    def crowd(self, kind: str, load: float | None) -> None:
        self.call("crowd", kind=kind, load=load)

    def cpu_use(self) -> CpuUse:
        return CpuUse(**self.call("cpu_use"))

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        if keeper == "kernel":
            raise self._missing(Verb.MEMORY_KERNEL)
        if limit_bytes is not None and limit_bytes <= 0:
            raise UsageError(f"a memory limit of {limit_bytes} bytes; it must be above 0")
        self.call("watch_memory", limit_bytes=limit_bytes)
        return "" if limit_bytes is None else "watchdog"

    def memory_use(self) -> MemoryUse:
        return MemoryUse(**self.call("memory_use"))

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        got: int = self.call("fill_memory", FILL_S_MAX, size_bytes=size_bytes, spare=spare)
        return got

    def doom(self, pid: int) -> None:
        self.call("doom", pid=pid)

    def skew_clock(self, offset_s: float) -> None:
        """The library that every process there was started with reads the offset from a file of the run."""
        if not self.alive:
            raise NodeGone(f"{self.key} is gone")
        skew.set_offset(self._owner.run_dir, self.name, offset_s)

    # The network, by Chaos Mesh; measured by ourselves

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.bandwidth(self._place, name, way, rate_bits), traffic)

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.impairment(self._place, name, way, impairment), traffic)

    def cut(self, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.partition(self._place, name, way), traffic)

    def disturb_storage(self, mount: str, rule: StorageRule) -> Disturbance:
        raise self._missing(Verb.STORAGE)

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        source, sink = self._ends(peer, back)
        port = sink.call("receive_packets", address=sink.address, count=count)
        how = {"count": count, "interval_s": interval_s, "size": PACKET_BYTES}
        limit_s = CALL_S_MAX + count * interval_s
        source.call("send_packets", limit_s, address=source.address, to=[sink.address, port], **how)
        found = sink.call("received_packets", limit_s + wait_s, port=port, wait_s=wait_s)
        apart_s = self._seconds_apart(source, sink)
        delays_s = tuple(delay - apart_s for delay in found.pop("delays_s"))
        return Arrivals(sent=count, delays_s=delays_s, **found)

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        """What arrives of a stream of our own; with `through` the job's traffic takes its part of the same limit."""
        source, sink = self._ends(peer, back)
        port = sink.call("receive_stream", address=sink.address)
        limit_s = CALL_S_MAX + seconds
        to = [sink.address, port]
        thread = _in_background(
            lambda: source.call("send_stream", limit_s, address=source.address, to=to, seconds=seconds)
        )
        rate: float = sink.call("stream_rate", limit_s, port=port, seconds=seconds)
        thread()
        return rate

    @property
    def _place(self) -> Any:
        return self._owner.mesh.place

    def _disturb(self, render: Callable[[str, Way], Object], traffic: Traffic) -> Disturbance:
        if self.pod is None or not self.alive:
            raise NodeGone(f"{self.key} is gone")
        way = Way(self.pod.name, traffic.direction, self._peer_pods(traffic))
        return self._owner.mesh.act(render(self._owner.mesh.next_name(), way))

    def _peer_pods(self, traffic: Traffic) -> tuple[str, ...]:
        """Chaos Mesh wants the peers by name: `all` is everybody there is in this run."""
        nodes, control = self._owner.others(self), self._owner.pod_of(None)
        match traffic.peers:
            case "all":
                peers = [*nodes, control]
            case "nodes":
                peers = nodes
            case "control":
                peers = [control]
            case wanted:
                peers = [self._owner.pod_of(each) for each in wanted]
        spared = {self._owner.pod_of(each).name for each in traffic.spared}
        return tuple(pod.name for pod in peers if pod.name not in spared)

    def _ends(self, peer: Node | None, back: bool) -> tuple[Pod, Pod]:
        if self.pod is None:
            raise NodeGone(f"{self.key} is not there yet")
        ends = (self.pod, self._owner.pod_of(peer))
        return (ends[1], ends[0]) if back else ends

    def _seconds_apart(self, source: Pod, sink: Pod) -> float:
        """How far the sink's monotonic clock is ahead of the source's; nothing on one machine."""
        if source.hello["clock"] == sink.hello["clock"]:
            return 0.0
        clocks = self._owner.clock_of(sink), self._owner.clock_of(source)
        return (clocks[0].mono_offset_ns - clocks[1].mono_offset_ns) / 1e9


def _in_background(work: Callable[[], object]) -> Callable[[], None]:
    """Starts `work`; the function returned waits for it and raises what it raised."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return lambda: (future.result(), None)[1]
