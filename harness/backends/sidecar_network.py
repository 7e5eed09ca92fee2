"""Passes calls that disturb or measure a node's network to the node's sidecar, a process of the harness in that
network.

A node's sidecar is started for the first disturbance or measurement of the node's network, and ends with the node.
"""

import collections
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.errors import BackendError, NodeGone
from harness.node.rpc import Line

CALL_S_MAX = 30.0


class NetworkHost(Protocol):
    address: str

    @property
    def key(self) -> str: ...
    @property
    def alive(self) -> bool: ...


@dataclass(frozen=True)
class End:
    address: str
    line: Line


def send_packets(
    source: End, sink: End, count: int, interval_s: float, size: int, wait_s: float, limit_s: float
) -> dict[str, Any]:
    port = sink.line.call("receive_packets", limit_s, address=sink.address, count=count)
    how = {"count": count, "interval_s": interval_s, "size": size}
    source.line.call("send_packets", limit_s, address=source.address, to=[sink.address, port], **how)
    found: dict[str, Any] = sink.line.call("received_packets", limit_s, port=port, wait_s=wait_s)
    return {"sent": count} | found


def fill_path(source: End, sink: End, seconds: float, limit_s: float, rate: Callable[[], float] | None = None) -> float:
    """Sends a stream over a network path, and returns the rate in bits per second, as measured by `rate` or else by the
    receiving end."""
    port = sink.line.call("receive_stream", limit_s, address=sink.address)
    with ThreadPoolExecutor(1) as pool:
        to = [sink.address, port]
        sent = pool.submit(source.line.call, "send_stream", limit_s, address=source.address, to=to, seconds=seconds)
        found: float = rate() if rate else sink.line.call("stream_rate", limit_s, port=port, seconds=seconds)
        sent.result()
    return found


@dataclass
class Disturbed:
    """A disturbance of one node's network. `parts` holds the sidecars that carry out the disturbance, each with the
    number by which the sidecar knows the disturbance."""

    node: str
    traffic: dict[str, Any]
    impairment: dict[str, Any] | None = None  # for a delay that the other hosts keep up
    parts: list[tuple[Line, int]] = field(default_factory=list)


class Network:
    """The active network disturbances of a run. The function `hosts` returns the hosts of the job, and the function
    `start` starts the sidecar of a host."""

    def __init__(
        self,
        hosts: Callable[[], Sequence[NetworkHost]],
        control: Callable[[], str],
        start: Callable[[NetworkHost], Line],
    ):
        self.ended = False
        self._hosts, self._control, self._start = hosts, control, start
        self._sidecars: dict[str, Line] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._disturbances: dict[int, Disturbed] = {}

    @property
    def control(self) -> str:
        return self._control()

    def call(self, method: str, limit_s: float = 30.0, **params: Any) -> Any:
        match method:
            case "net.heal":
                return self._heal(params["number"], limit_s)
            case "net.counts":
                return self._counts(params["number"], limit_s)
            case "net.packets":
                source, sink = (self._end(params.pop(name)) for name in ("source", "destination"))
                return send_packets(source, sink, limit_s=limit_s, **params)
            case "net.transfer":
                return {"bits_per_s": self._transfer(limit_s, **params)}
        host = self._host(params.pop("node"))
        if method == "net.connections":
            return self._sidecar(host).call("connections", limit_s, **params)
        if method == "net.reset":
            return self._sidecar(host).call("reset", limit_s, spared=self.control, **params)
        if method == "net.examine":
            return self._sidecar(host).call("examine", limit_s, place=self._place(host))
        return self._begin(host, method.removeprefix("net."), limit_s, params)

    def joined(self, host: NetworkHost) -> None:
        """Makes a new host delay packets from nodes whose outgoing packets are currently delayed by a fault."""
        for disturbed in list(self._disturbances.values()):
            if disturbed.impairment is not None and host in self._receivers(disturbed):
                self._delay_from(disturbed, host)

    def _begin(self, host: NetworkHost, verb: str, limit_s: float, params: dict[str, Any]) -> int:
        disturbed = Disturbed(host.key, params.get("traffic", {}))
        number = next(self._numbers)
        self._disturbances[number] = disturbed
        try:
            here: dict[str, Any] | None = params
            delays = verb == "impair" and any(float(params["impairment"][key]) > 0 for key in ("delay_s", "jitter_s"))
            if delays and disturbed.traffic["direction"] != "ingress":
                here = self._spread(disturbed, params)
            if here is not None:
                line = self._sidecar(host)
                disturbed.parts.append((line, line.call(verb, limit_s, place=self._place(host), **here)))
        except BaseException:
            self._heal(number, limit_s)
            raise
        return number

    def _spread(self, disturbed: Disturbed, params: dict[str, Any]) -> dict[str, Any] | None:
        """Makes the other hosts delay the packets that a node sends. If incoming packets must be delayed, too, returns
        the parameters for the node's own sidecar, or else `None`.

        The sending host itself must not delay packets, because this would slow TCP down. In a test with 10 Gbit/s, a
        delay of 20 ms on the sending host left 2 Mbit/s, and the same delay on the receiving host left 1.1 Gbit/s.
        """
        disturbed.impairment = params["impairment"]
        for host in self._receivers(disturbed):
            self._delay_from(disturbed, host)
        if disturbed.traffic["direction"] == "egress":
            return None
        return params | {"traffic": disturbed.traffic | {"direction": "ingress"}}

    def _receivers(self, disturbed: Disturbed) -> list[NetworkHost]:
        peers, spared = disturbed.traffic["peers"], disturbed.traffic["spared"]
        others = [host for host in self._hosts() if host.alive and host.key != disturbed.node]
        if isinstance(peers, list):
            others = [host for host in others if host.address in peers]
        elif peers == "nodes":
            others = [host for host in others if host.address != self.control]
        return [host for host in others if host.address not in spared]

    def _delay_from(self, disturbed: Disturbed, receiver: NetworkHost) -> None:
        line = self._sidecar(receiver)
        traffic = {"direction": "ingress", "peers": [self._host(disturbed.node).address], "spared": []}
        place = self._place(receiver)
        number = line.call("impair", CALL_S_MAX, place=place, impairment=disturbed.impairment, traffic=traffic)
        disturbed.parts.append((line, number))

    def forget(self, key: str) -> None:
        """Forgets a node that is gone, and ends its sidecar. A container's network exists as long as a process, such as
        a sidecar, runs in it."""
        with self._lock:
            line = self._sidecars.pop(key, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        self.ended = True
        for key in list(self._sidecars):
            self.forget(key)

    def _host(self, key: str) -> NetworkHost:
        host = next((host for host in self._hosts() if key in (host.key, host.key.partition(".")[0])), None)
        if host is None or not host.alive:
            raise NodeGone(f"node {key} is gone")
        return host

    def _place(self, host: NetworkHost) -> dict[str, Any]:
        nodes = [other for other in self._hosts() if not other.key.startswith("control")]
        others = [other.address for other in nodes if other is not host and other.alive]
        return {"address": host.address, "control": self.control, "others": others}

    def _sidecar(self, host: NetworkHost) -> Line:
        with self._lock:
            line = self._sidecars.get(host.key)
            if line is None or line.ended:
                line = self._sidecars[host.key] = self._start(host)
        if not host.alive:  # it went meanwhile, and its end was not seen by this sidecar
            self.forget(host.key)
            raise NodeGone(f"node {host.key} is gone")
        return line

    def _heal(self, number: int, limit_s: float) -> None:
        disturbed = self._disturbances.get(number)
        if disturbed is None:
            return
        disturbed.impairment = None
        while disturbed.parts:
            line, local = disturbed.parts[-1]
            try:
                line.call("heal", limit_s, number=local)
            except BackendError:
                if not line.ended:  # else that network has gone with its node
                    raise
            disturbed.parts.pop()
        del self._disturbances[number]

    def _counts(self, number: int, limit_s: float) -> dict[str, int]:
        total: collections.Counter[str] = collections.Counter()
        for line, local in self._disturbances[number].parts:
            if not line.ended:
                total.update(line.call("counts", limit_s, number=local))
        return dict(total)

    def _end(self, key: str) -> End:
        host = self._host(key)
        return End(host.address, self._sidecar(host))

    def _transfer(self, limit_s: float, source: str, destination: str, seconds: float, through: int | None) -> float:
        rate = None
        if through is not None:
            line, number = self._disturbances[through].parts[0]
            sent_here = self._disturbances[through].node == self._host(source).key
            how = {"number": number, "sent_here": sent_here, "seconds": seconds}
            rate = functools.partial(line.call, "device_rate", limit_s, **how)
        return fill_path(self._end(source), self._end(destination), seconds, limit_s, rate)
