"""Disturbs the network of virtual nodes. Each disturbance begins completely or not at all.

`CALLS` maps the name of each remote call, such as `net.cut`, to its function. Traffic is given as `{"direction": egress
| ingress | both, "peers": null (everything) | "nodes" (all but the control host) | addresses, "spared": addresses}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import BackendError, UsageError
from harness.node import kernel, processes, rpc, spawn
from harness.node.compat import TIMEOUTS
from harness.node.lab import Call, Disturbance, Lab, Wired
from harness.node.lab_nodes import NamespaceNode
from harness.node.net import lossy_link, net_connections, net_links, net_probe, rate_limit
from harness.node.net.packet_rules import LAB_END, Field, Match, PacketRule, Where
from harness.node.types import Impairment

LINE_READY_S_MAX = 5.0
LINE_END_S_MAX = 5.0
PROBE_S_MAX = 20.0  # beyond the time it takes anyway
Traffic = Mapping[str, Any]
EVERYTHING: Traffic = {"direction": "both", "peers": None, "spared": []}


def _wheres(traffic: Traffic) -> list[Where]:
    ways: dict[str, list[Where]] = {"egress": ["sent"], "ingress": ["received"], "both": ["sent", "received"]}
    return ways[traffic["direction"]]


def _selections(host: Wired, where: Where, traffic: Traffic) -> list[tuple[Match, ...]]:
    """Returns sets of conditions: `traffic` consists of the packets that meet all conditions of at least one set."""
    own: Field = "source" if where == "sent" else "destination"
    other: Field = "destination" if where == "sent" else "source"
    spared = list(traffic["spared"])
    if isinstance(traffic["peers"], list):
        return [
            (Match(own, host.address), Match(other, address)) for address in traffic["peers"] if address not in spared
        ]
    if traffic["peers"] == "nodes":
        spared.append(host.lab.control_address)
    return [(Match(own, host.address), *(Match(other, address, equal=False) for address in spared))]


def _rules(host: Wired, traffic: Traffic, queue: int | None = None) -> list[PacketRule]:
    rules = []
    for where in _wheres(traffic):
        away = Match("destination" if where == "sent" else "source", host.address, equal=False)
        matches = _selections(host, where, traffic)
        rules += [PacketRule(host.hooks[where], (*each, away), queue) for each in matches]
    return rules


class Shape(Disturbance):
    what = "rate limit"

    def __init__(self, lab: Lab, host: Wired, rate_bits: int, traffic: Traffic):
        super().__init__(lab, host, traffic)
        self._rate_bits = rate_bits
        if traffic["spared"]:
            raise UsageError("a rate limit cannot spare nodes: name those whose traffic is to be limited")
        if traffic["peers"] == "nodes":  # the classifier knows no "all but"
            alive = [each.address for each in lab.hosts.values() if not each.gone.is_set()]
            self.traffic = {**traffic, "peers": [address for address in alive if address != host.address]}

    async def _act(self) -> None:
        for where in _wheres(self.traffic):
            self._detour(where, self._through(where))

    def _detour(self, where: Where, through: str) -> None:
        device, hook = self.host.device, self.host.hooks[where]
        rate_limit.add_ifb(through)
        self.undo.callback(net_links.delete_link, through)
        rate_limit.set_rate(through, self._rate_bits)
        # The device's classifier is there as long as somebody needs it.
        users = self.lab.classifiers.setdefault(device, [])
        if not users:
            rate_limit.add_classifier(device)
        users.append(self.number)
        self.undo.callback(self._leave_classifier, device)
        self.undo.callback(rate_limit.delete_detour, device, hook, self.number)
        for matches in _selections(self.host, where, self.traffic):
            rate_limit.add_detour(device, hook, self.number, matches, through)

    def _leave_classifier(self, device: str) -> None:
        users = self.lab.classifiers[device]
        users.remove(self.number)
        if not users:
            rate_limit.delete_classifier(device)

    def counter(self, source: str) -> str:
        return self._through("sent" if source == self.host.key else "received")

    def _through(self, where: Where) -> str:
        return f"{where[:4]}{self.number}"


class Impaired(Disturbance):
    what = "impairment"

    def __init__(self, lab: Lab, host: Wired, impairment: Mapping[str, Any], traffic: Traffic):
        super().__init__(lab, host, traffic)
        self._impairment = Impairment(**impairment)
        self._line: rpc.AsyncClient

    async def _act(self) -> None:
        await self._start_line()
        self._add_table(_rules(self.host, self.traffic, self.number))
        self.undo.push_async_callback(self._let_pass)

    async def _start_line(self) -> None:
        ours, theirs = socket.socketpair()
        ended = asyncio.Event()

        def line_ended(code: int) -> None:
            ended.set()
            if code != 0:
                self.lab.note(f"the delay line of node {self.host.key} ended with {code}: packets pass undisturbed")

        with theirs:
            pid = spawn.fork(lambda: lossy_link.main(theirs, self.number, self._impairment), keep=(theirs.fileno(),))
        self.lab.on_exit(pid, line_ended)
        self.undo.push_async_callback(_end_process, pid, ended)
        ours.settimeout(LINE_READY_S_MAX)
        event = rpc.receive(ours)
        if event["event"] == "failed":
            ours.close()
            raise OSError(event["errno"], event["error"]["message"])
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        self._line = rpc.AsyncClient(reader, writer, lambda _: None)
        self.undo.callback(writer.close)

    async def counts(self) -> dict[str, int]:
        try:
            counts: dict[str, int] = await self._line.call("counts")
        except ConnectionError as error:
            raise BackendError(f"the delay line of node {self.host.key} has ended by itself; see labd.log") from error
        return counts

    async def _let_pass(self) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended by itself: then packets pass already
            await self._line.call("pass")


async def _end_process(pid: int, ended: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(ended.wait(), LINE_END_S_MAX)
    except TIMEOUTS:
        os.kill(pid, signal.SIGKILL)


class Cut(Disturbance):
    """A disturbance that drops a node's packets, without notice to the sender."""

    what = "cut"

    async def _act(self) -> None:
        self._add_table(_rules(self.host, self.traffic))


class Unplug(Disturbance):
    """A disturbance like a pulled cable: the node has no carrier, and packets to it vanish."""

    what = "link down"

    async def _act(self) -> None:
        if self.host.key in self.lab.unplugged:
            raise UsageError(f"the link of node {self.host.key} is down already")
        self.lab.unplugged.add(self.host.key)
        self.undo.callback(self.lab.unplugged.remove, self.host.key)
        net_links.set_down(self.host.device)
        self.undo.callback(self._plug)
        net_links.add_blackhole(self.host.address)
        self.undo.callback(net_links.delete_blackhole, self.host.address)

    def _plug(self) -> None:
        if not self.host.gone.is_set():
            net_links.set_up(self.host.device)
            net_links.add_route(self.host.device, self.host.address, source=self.lab.control_address)


def _host(lab: Lab, node: str) -> NamespaceNode:
    host = lab.living(node)
    if not isinstance(host, NamespaceNode):
        raise UsageError(f"node {node} has no network of its own")
    return host


def _beginning(kind: Callable[..., Disturbance]) -> Call:
    async def begin(lab: Lab, host: Wired, **params: Any) -> int:
        disturbance = kind(lab, host, **params)
        try:
            await disturbance.begin()
        except OSError as error:
            raise BackendError(f"node {host.key}: {disturbance.what}: {error}") from error
        lab.disturbances[disturbance.number] = disturbance
        lab.note(f"node {host.key}: {disturbance.what} begins ({disturbance.number})")
        return disturbance.number

    return begin


shape, impair, cut, unplug = map(_beginning, (Shape, Impaired, Cut, Unplug))


async def heal(lab: Lab, number: int) -> None:
    disturbance = lab.disturbances.get(number)
    if disturbance is not None:
        await disturbance.end()
        del lab.disturbances[number]
        lab.note(f"node {disturbance.host.key}: disturbance {number} has ended")


async def counts(lab: Lab, number: int) -> dict[str, int]:
    if number not in lab.disturbances:
        raise UsageError(f"unknown disturbance {number}")
    return await lab.disturbances[number].counts()


async def examine(lab: Lab, host: Wired) -> dict[str, str]:
    """Tries each network disturbance on a node. Returns the disturbances that the kernel refuses, with reasons."""
    tries: dict[str, Disturbance] = {
        "network rate": Shape(lab, host, 10**9, EVERYTHING),
        "network delay": Impaired(lab, host, {"delay_s": 0.001}, EVERYTHING),
        "network loss": Impaired(lab, host, {"loss_percent": 50, "damage_percent": 50}, EVERYTHING),
        "network partition": Cut(lab, host, EVERYTHING),
    }
    if host.hooks == LAB_END:  # a node's own device is never taken down
        tries["network link"] = Unplug(lab, host)
    refused = {}
    for verb, disturbance in tries.items():
        try:
            await disturbance.begin()
            await disturbance.end()
        except OSError as error:
            refused[verb] = str(error)
    try:
        net_connections.try_reset()
    except OSError as error:
        refused["reset connections"] = str(error)
    return refused


async def packets(
    lab: Lab, source: str, destination: str, count: int, interval_s: float, size: int, wait_s: float
) -> dict[str, Any]:
    ends = _end(lab, source), _end(lab, destination)
    work = functools.partial(net_probe.packets, *ends, count, interval_s, size, wait_s)
    return await _probe(work, PROBE_S_MAX + count * interval_s + wait_s)


async def transfer(lab: Lab, source: str, destination: str, seconds: float, through: int | None) -> dict[str, Any]:
    counter = lab.disturbances[through].counter(source) if through in lab.disturbances else None
    ends = _end(lab, source), _end(lab, destination)
    return await _probe(functools.partial(net_probe.transfer, *ends, seconds, counter), PROBE_S_MAX + seconds)


async def connections(lab: Lab, node: str, pids: list[int]) -> dict[str, Any]:
    host = _host(lab, node)

    def look() -> dict[str, Any]:
        candidates = processes.descendants(host.init_pid)
        kernel.enter_network(host.init_pid)
        return net_connections.report(candidates, pids)

    return await _probe(look, PROBE_S_MAX)


async def reset(lab: Lab, node: str, pids: list[int]) -> int:
    host = _host(lab, node)

    def act() -> dict[str, Any]:
        candidates = processes.descendants(host.init_pid)
        kernel.enter_network(host.init_pid)
        return {"count": net_connections.reset(candidates, pids, [lab.control_address])}

    return int((await _probe(act, PROBE_S_MAX))["count"])


def _end(lab: Lab, node: str) -> net_probe.End:
    if node == "control":
        return net_probe.End(os.getpid(), lab.control_address)
    host = _host(lab, node)
    return net_probe.End(host.init_pid, host.address)


async def _probe(work: Callable[[], dict[str, Any]], limit_s: float) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = spawn.fork(lambda: net_probe.run(write_end, work), keep=(write_end,))
    os.close(write_end)
    reader = asyncio.StreamReader(limit=rpc.FRAME_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read_end, "rb"))
    try:
        frame = await asyncio.wait_for(reader.read(), limit_s)
    except TIMEOUTS as error:
        os.kill(pid, signal.SIGKILL)
        raise BackendError(f"the network probe gave no answer within {limit_s:g} s") from error
    finally:
        transport.close()
    if not frame:
        raise BackendError("the probe died; see labd.log")
    found: dict[str, Any] = rpc.result(rpc.unpack(frame))
    return found


def _to_node(verb: Call) -> Call:
    return lambda lab, node, **params: verb(lab, _host(lab, node), **params)


CALLS: dict[str, Call] = {
    "net.shape": _to_node(shape),
    "net.impair": _to_node(impair),
    "net.cut": _to_node(cut),
    "net.unplug": _to_node(unplug),
    "net.heal": heal,
    "net.counts": counts,
    "net.examine": _to_node(examine),
    "net.packets": packets,
    "net.transfer": transfer,
    "net.connections": connections,
    "net.reset": reset,
}
