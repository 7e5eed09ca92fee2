"""Disturbs and measures a node's network through a process of the harness: the daemon of virtual nodes, or a process
beside the node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from harness.backends.contract import Disturbance, Node, Traffic, Verb
from harness.backends.node_base import Caller, NodeBase
from harness.errors import BackendError, UsageError
from harness.node.rpc import Line
from harness.node.types import Arrivals, Connection, Connections, Impairment

PACKET_BYTES = 64
_LIMIT_S = 30.0
_PACKET_RULES = "nftables (nf_tables)"
_QUEUE = "its queues (nfnetlink_queue, and nft_queue or xt_NFQUEUE)"
_MODULES = {
    Verb.NET_RATE: "ifb, sch_ingress, sch_tbf, cls_u32 and act_mirred",
    Verb.NET_DELAY: f"{_PACKET_RULES} and {_QUEUE}",
    Verb.NET_LOSS: f"{_PACKET_RULES} and {_QUEUE}",
    Verb.NET_LINK: "veth",
    Verb.NET_PARTITION: _PACKET_RULES,
    Verb.NET_RESET: "tcp_diag, in a kernel with INET_DIAG_DESTROY",
}
VERBS = tuple(_MODULES)


class NetworkCaller(Caller, Protocol):
    @property
    def control(self) -> str: ...


class LabDisturbance(Disturbance):
    def __init__(self, lab: NetworkCaller, number: int):
        self.number = number
        self._lab = lab

    def heal(self) -> None:
        if not self._lab.ended:  # else the kernel has undone everything
            self._lab.call("net.heal", number=self.number)

    def counts(self) -> Mapping[str, int]:
        found: dict[str, int] = self._lab.call("net.counts", number=self.number)
        return found


class NetworkedNode(NodeBase):
    _lab: NetworkCaller

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        return self._disturb("shape", rate_bits=rate_bits, traffic=self._traffic(traffic))

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        return self._disturb("impair", impairment=vars(impairment), traffic=self._traffic(traffic))

    def unplug(self) -> Disturbance:
        return self._disturb("unplug")

    def cut(self, traffic: Traffic) -> Disturbance:
        return self._disturb("cut", traffic=self._traffic(traffic))

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        limit_s = _LIMIT_S + count * interval_s + wait_s
        how = {"count": count, "interval_s": interval_s, "size": PACKET_BYTES, "wait_s": wait_s}
        found = self._measure("packets", peer, back, limit_s, **how)
        return Arrivals(**found | {"delays_s": tuple(found["delays_s"])})

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        number = through.number if isinstance(through, LabDisturbance) else None
        found = self._measure("transfer", peer, back, _LIMIT_S + seconds, seconds=seconds, through=number)
        return float(found["bits_per_s"])

    def connections(self, pids: Sequence[int]) -> Connections:
        found = self._lab.call("net.connections", node=self.key, pids=list(pids))
        each = tuple(Connection(**row) for row in found["connections"])
        return Connections(each, found["of_processes"], found["rdma_bytes"])

    def reset_connections(self, pids: Sequence[int]) -> int:
        if not pids:
            raise UsageError(f"node {self.key}: no process given whose connections are to be reset")
        return int(self._lab.call("net.reset", node=self.key, pids=list(pids)))

    def _disturb(self, verb: str, **params: Any) -> LabDisturbance:
        return LabDisturbance(self._lab, self._lab.call(f"net.{verb}", node=self.key, **params))

    def _measure(self, what: str, peer: Node | None, back: bool, limit_s: float, **params: Any) -> dict[str, Any]:
        ends = [self.key, "control" if peer is None else f"{peer.name}.{peer.incarnation}"]
        source, destination = reversed(ends) if back else ends
        found: dict[str, Any] = self._lab.call(f"net.{what}", limit_s, source=source, destination=destination, **params)
        return found

    def _traffic(self, traffic: Traffic) -> dict[str, Any]:
        match traffic.peers:
            case "all":
                peers: object = None
            case "nodes":
                peers = "nodes"
            case "control":
                peers = [self._lab.control]
            case nodes:
                peers = [node.address for node in nodes]
                if not peers:
                    raise BackendError(f"node {self.key}: no peers given whose traffic is to be disturbed")
        spared = [node.address for node in traffic.spared]
        return {"direction": traffic.direction, "peers": peers, "spared": spared}


def examine(open_lab: Callable[[], Line]) -> dict[Verb, str | None]:
    """Maps each network disturbance to the reason why the kernel refuses it, or to `None` if it works."""
    with contextlib.closing(open_lab()) as lab:
        lab.call("node.create", name="probe", incarnation=1)
        refused: dict[str, str] = lab.call("net.examine", node="probe.1")
    remedy = "load the modules, or use a virtual machine"
    return {
        verb: f"the kernel refuses ({refused[verb]}): it needs {modules}; {remedy}" if verb in refused else None
        for verb, modules in _MODULES.items()
    }
