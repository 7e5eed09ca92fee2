"""The network verbs of a node of the local backend, as calls to its lab."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from harness.backend import Arrivals, Disturbance, Impairment, Node, Traffic
from harness.errors import BackendError
from harness.lab import client

_LIMIT_S = 30.0


class LabDisturbance(Disturbance):
    def __init__(self, lab: client.LabClient, number: int):
        self.number = number
        self._lab = lab

    def heal(self) -> None:
        if not self._lab.ended:  # else the kernel has undone everything
            self._lab.call("net.heal", number=self.number)

    def counts(self) -> Mapping[str, int]:
        found: dict[str, int] = self._lab.call("net.counts", number=self.number)
        return found


class NetworkedNode(Node):
    """Mixed into a node that has `_lab` and `key`."""

    _lab: client.LabClient
    key: str

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        return self._disturb("shape", rate_bits=rate_bits, traffic=self._traffic(traffic))

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        profile = dataclasses.asdict(impairment)
        profile["burst"] = profile.pop("loss_burst")
        return self._disturb("impair", profile=profile, traffic=self._traffic(traffic))

    def unplug(self) -> Disturbance:
        return self._disturb("unplug")

    def cut(self, traffic: Traffic) -> Disturbance:
        return self._disturb("cut", traffic=self._traffic(traffic))

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, size: int = 64
    ) -> Arrivals:
        limit_s = _LIMIT_S + count * interval_s
        found = self._measure("packets", peer, back, limit_s, count=count, interval_s=interval_s, size=size)
        return Arrivals(**found | {"delays_s": tuple(found["delays_s"])})

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        number = through.number if isinstance(through, LabDisturbance) else None
        found = self._measure("transfer", peer, back, _LIMIT_S + seconds, seconds=seconds, through=number)
        return float(found["bits_per_s"])

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
        return {"direction": traffic.direction, "peers": peers}
