"""Runs beside a node, in its network: disturbs the node's traffic and measures paths.

The mechanisms are the lab's; they act here at the node's own end of the wire. What the lab sees enter (the node
sent it) here leaves, so hooks are the opposite ones, and what never leaves the node must be told apart.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from harness.backends.agent import processes, server
from harness.backends.agent.net import connections as net_connections
from harness.backends.agent.net import links as net
from harness.backends.agent.net import netlink, paths
from harness.backends.agent.net import shape as net_shape
from harness.backends.agent.net import verbs as net_verbs
from harness.backends.agent.net.netlink import nested, text
from harness.backends.agent.net.rules import Field, Match, PacketRule, Where
from harness.backends.agent.net.verbs import Traffic
from harness.backends.agent.state import Lab
from harness.errors import UsageError

DEVICE = "eth0"
HERE = "here"  # the node, as the lab's disturbances know it
EVERYTHING: Traffic = {"direction": "both", "peers": None, "spared": []}
_OPPOSITE: dict[Where, Where] = {"sent": "received", "received": "sent"}
_NEW_LINK = 16


def _rules(host: Any, traffic: Traffic, queue: int | None = None) -> list[PacketRule]:
    """A packet from this node to itself is no traffic: it never gets to the wire."""
    rules = []
    for where in net_verbs._wheres(traffic):
        other: Field = "destination" if where == "sent" else "source"
        away = Match(other, host.address, equal=False)
        matches = net_verbs._selections(host, where, traffic)
        rules += [PacketRule(_OPPOSITE[where], (*each, away), queue) for each in matches]
    return rules


class Cut(net_verbs.Cut):
    async def _act(self) -> None:
        self._add_table(_rules(self.host, self._traffic))


class Impairment(net_verbs.Impairment):
    async def _act(self) -> None:
        await self._start_line()
        self._add_table(_rules(self.host, self._traffic, self.number))
        self.undo.push_async_callback(self._let_pass)


class Shape(net_verbs.Shape):
    def _detour(self, where: Where, through: str) -> None:
        body = net.link_header() + text(net.IFLA_IFNAME, through) + nested(net.IFLA_LINKINFO, text(1, "ifb"))
        netlink.request(netlink.ROUTE, _NEW_LINK, netlink.CREATE | netlink.EXCL, body, f"add device {through}")
        self.undo.callback(net.delete_link, through)
        net.set_up(through)
        net_shape.set_rate(through, self._rate_bits)
        self._use_classifier(DEVICE)
        hook = _OPPOSITE[where]
        self.undo.callback(net_shape.delete_detour, DEVICE, hook, self.number)
        for matches in net_verbs._selections(self.host, where, self._traffic):
            net_shape.add_detour(DEVICE, hook, self.number, matches, through)


class Sidecar:
    def __init__(self) -> None:
        self._lab = Lab("", True, "", iter(()))
        self._ends = paths.Ends()

    async def serve(self) -> None:
        """Until the harness is gone."""
        await server.serve(self.calls(), self._lab.reap, {})

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "shape": self._shape,
            "impair": self._impair,
            "cut": self._cut,
            "unplug": self._unplug,
            "heal": functools.partial(net_verbs.heal, self._lab),
            "counts": functools.partial(net_verbs.counts, self._lab),
            "examine": self._examine,
            "receive_packets": self._ends.receive_packets,
            "send_packets": self._ends.send_packets,
            "received_packets": self._ends.received_packets,
            "receive_stream": self._ends.receive_stream,
            "send_stream": self._ends.send_stream,
            "stream_rate": self._ends.stream_rate,
            "device_rate": self._device_rate,
            "connections": self._connections,
        }

    def _host(self, place: dict[str, Any]) -> Any:
        """What the lab's disturbances want to know of a node. `place`: own address, control's, other nodes'."""
        self._lab.control_address = place["control"]
        gone = asyncio.Event()
        others = [SimpleNamespace(address=address, gone=gone) for address in place["others"]]
        host = SimpleNamespace(key=HERE, address=place["address"], device=DEVICE, lab=self._lab, gone=gone)
        self._lab.hosts = {str(number): cast(Any, each) for number, each in enumerate([host, *others])}
        return host

    async def _shape(self, place: dict[str, Any], rate_bits: int, traffic: Traffic) -> int:
        shape = Shape(self._lab, self._host(place), rate_bits, traffic)
        return await net_verbs._begin(shape, "rate limit")

    async def _impair(self, place: dict[str, Any], profile: dict[str, Any], traffic: Traffic) -> int:
        impairment = Impairment(self._lab, self._host(place), profile, traffic)
        return await net_verbs._begin(impairment, "impairment")

    async def _cut(self, place: dict[str, Any], traffic: Traffic) -> int:
        return await net_verbs._begin(Cut(self._lab, self._host(place), traffic), "cut")

    async def _unplug(self, place: dict[str, Any]) -> int:
        """Nothing passes either way. The node's own device keeps its carrier: its other end is the daemon's."""
        return await self._cut(place, EVERYTHING)

    async def _examine(self, place: dict[str, Any]) -> dict[str, str]:
        """Which verbs the kernel refuses here, and why: found by doing each."""
        host = self._host(place)
        tries: dict[str, net_verbs.Disturbance] = {
            "network rate": Shape(self._lab, host, 10**9, EVERYTHING),
            "network delay": Impairment(self._lab, host, {"delay_s": 0.001}, EVERYTHING),
            "network loss": Impairment(self._lab, host, {"loss": 0.5, "damage": 0.5}, EVERYTHING),
            "network partition": Cut(self._lab, host, EVERYTHING),
        }
        refused = {}
        for verb, disturbance in tries.items():
            try:
                await disturbance.begin()
                await disturbance.end()
            except OSError as error:
                refused[verb] = str(error)
        return refused

    def _connections(self, pids: list[int]) -> dict[str, Any]:
        """The node's TCP connections. Its network is its own; its processes cannot be seen from here."""
        return net_connections.report(self._candidates(), pids)

    def _candidates(self) -> list[processes.ProcEntry]:
        return []

    async def _device_rate(self, number: int, sent_here: bool, seconds: float) -> float:
        """Bits a second of all that passes a rate limit one way, whoever sent it."""
        disturbance = self._lab.disturbances.get(number)
        device = disturbance.counter(HERE if sent_here else "") if disturbance is not None else None
        if device is None:
            raise UsageError(f"disturbance {number} counts no bytes")
        return await asyncio.to_thread(paths.median_rate, lambda: paths.transmitted_bytes(device), seconds)


if __name__ == "__main__":
    asyncio.run(Sidecar().serve())
