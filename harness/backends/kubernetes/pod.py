"""Defines the connection to a pod's init process, and the job's node that runs in the pod."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from harness.backends.contract import Disturbance, Node, Traffic
from harness.backends.kubernetes import mesh
from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.manifests import Object
from harness.backends.kubernetes.mesh import Mesh, Way
from harness.backends.kubernetes.stream import PodStream
from harness.backends.node_base import CALL_S_MAX, NodeBase
from harness.backends.run_folder import CONTROL
from harness.backends.sidecar_network import End, fill_path, send_packets
from harness.errors import BackendError, NodeGone
from harness.node import rpc
from harness.node.types import Arrivals, Impairment

ATTACH_S_MAX = 20.0
HELLO_S_MAX = 60.0
HELLO_S = 2.0  # of one try: what was said before both ends were there is lost
BEAT_S_MAX = 5.0
DIE_S_MAX = 2.0
PACKET_BYTES = 64


class Pod(rpc.Line):
    """A connection to the init process of one of the run's pods. `hello` is the first answer of the init process.

    `node` is the name of the job's node in this pod, or empty until the init process has answered. `running` says how
    often the command was started (1 for the first start), or is 0 if no command runs.
    """

    def __init__(
        self,
        api: Api,
        wanted: Object,
        errors: pathlib.Path,
        on_event: Callable[[Pod, rpc.Message], None],
        on_end: Callable[[Pod], None],
    ):
        self.name: str = wanted["metadata"]["name"]
        self.machine: str = wanted["spec"].get("nodeName", "")
        self.node = ""
        self.running = 0
        self.mono_offset_ns = 0  # how far its monotonic clock is ahead of ours
        stream = _attach(api, self.name, wanted["spec"]["containers"][0]["name"], errors)
        super().__init__(stream, lambda event: on_event(self, event), lambda: on_end(self))
        try:
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise
        self._heard_s = time.monotonic()
        self.address: str = self.hello["address"]
        self.node = CONTROL if self.hello["role"] == CONTROL else f"node{int(self.hello['index'])}"

    def _greet(self) -> dict[str, Any]:
        deadline = time.monotonic() + HELLO_S_MAX
        while True:
            try:
                answer: dict[str, Any] = super().call("hello", HELLO_S)
                return answer
            except BackendError:
                if self.ended or time.monotonic() > deadline:
                    raise

    def beat(self, silent_s_max: float) -> None:
        """Tells the pod's init that the harness is alive. A pod that has been silent for `silent_s_max` seconds counts
        as lost, and the connection to the pod is closed. Each pod ends itself after a shorter silence of the harness,
        so a silent pod's machine must be gone."""
        try:
            self.call("beat", BEAT_S_MAX)
            self._heard_s = time.monotonic()
        except BackendError:
            if not self.ended and time.monotonic() - self._heard_s > silent_s_max:
                self.close()

    @property
    def end(self) -> End:
        return End(self.address, self)

    @property
    def command_runs(self) -> bool:
        return self.running > 0

    def kill_command(self) -> None:
        self.call("signal", signum=int(signal.SIGKILL), pid=None)

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        """Calls a function of the pod's init process. Raises `NodeGone` if the pod has ended, even during the call."""
        if self.ended:
            raise NodeGone(f"pod {self.name} is gone")
        try:
            return super().call(method, limit_s, **params)
        except BackendError as error:
            if self.ended:
                raise NodeGone(f"pod {self.name} is gone") from error
            raise

    def die(self, code: int = 128 + signal.SIGKILL) -> None:
        """Ends all processes in the pod at once; the pod's exit code is `code`. If the pod's init does not answer,
        leaves it to the kubelet to end the pod."""
        try:
            self.call("die", DIE_S_MAX, code=code)
        except BackendError:  # an init that dies as told cannot answer
            self.wait_ended(1.0)

    def run(self, start: int, command: tuple[str, ...], env: dict[str, str], name: str) -> None:
        self.running = start
        self.call("run", 30.0, command=list(command), env=env, name=name)


def _attach(api: Api, pod: str, container: str, errors: pathlib.Path) -> PodStream:
    """Connects to the first process of a pod's container. The connection is tried repeatedly, because the kubelet may
    not know a running container yet."""
    deadline = time.monotonic() + ATTACH_S_MAX
    while True:
        try:
            return api.attach(pod, container, errors)
        except BackendError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


class Owner(Protocol):
    mesh: Mesh
    run_dir: pathlib.Path

    def kill(self, node: KubeNode) -> None: ...
    def evict(self, node: KubeNode, grace_s: float) -> None: ...
    def pod_of(self, peer: Node | None) -> Pod: ...
    def others(self, node: KubeNode) -> list[Pod]: ...


class KubeNode(NodeBase):
    """A node of the job, which runs in one pod; later nodes for the same place in the job run in later pods. `pod` is
    `None` until Kubernetes has started the first pod for this place in the job."""

    def __init__(self, owner: Owner, index: int, incarnation: int, pod: Pod | None):
        super().__init__(f"node{index}", index, incarnation, owner.run_dir)
        self.pod, self._owner = pod, owner
        self.address = pod.address if pod else ""
        self.end_reason = "the pod has ended"

    @property
    def alive(self) -> bool:
        return self.pod is not None and not self.pod.ended

    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        if self.pod is None:
            raise NodeGone(f"{self.key} is not there yet")
        return self.pod.call(method, limit_s, **params)

    def kill(self) -> None:
        self._owner.kill(self)

    def evict(self, grace_s: float) -> None:
        self._owner.evict(self, grace_s)

    def skew_clock(self, offset_s: float) -> None:
        with self.there():
            super().skew_clock(offset_s)

    # The network, by Chaos Mesh; measured by ourselves

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.bandwidth(self._place, name, way, rate_bits), traffic)

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.impairment(self._place, name, way, impairment), traffic)

    def cut(self, traffic: Traffic) -> Disturbance:
        return self._disturb(lambda name, way: mesh.partition(self._place, name, way), traffic)

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        source, sink = self._ends(peer, back)
        limit_s = CALL_S_MAX + count * interval_s + wait_s
        found = send_packets(source.end, sink.end, count, interval_s, PACKET_BYTES, wait_s, limit_s)
        # On two machines the sink's monotonic clock is ahead of the source's by so much; on one it is the same clock.
        same = source.hello["clock"] == sink.hello["clock"]
        apart_s = 0.0 if same else (sink.mono_offset_ns - source.mono_offset_ns) / 1e9
        return Arrivals(**found | {"delays_s": tuple(delay - apart_s for delay in found["delays_s"])})

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        """Measures the rate of a data stream that the harness sends from one node to another, in bits per second.
        Ignores `through`, because a rate limit applies to the data stream and the job's own traffic together."""
        source, sink = self._ends(peer, back)
        return fill_path(source.end, sink.end, seconds, CALL_S_MAX + seconds)

    @property
    def _place(self) -> Any:
        return self._owner.mesh.place

    def _disturb(self, render: Callable[[str, Way], Object], traffic: Traffic) -> Disturbance:
        if self.pod is None or not self.alive:
            raise NodeGone(f"{self.key} is gone")
        way = Way(self.pod.name, traffic.direction, self._peer_pods(traffic))
        return self._owner.mesh.act(render(self._owner.mesh.next_name(), way))

    def _peer_pods(self, traffic: Traffic) -> tuple[str, ...]:
        """Returns the names of the pods with which the node exchanges this traffic, except pods that the fault must
        spare. If the traffic's peers are `all`, returns the pods of all other nodes and the control host."""
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
