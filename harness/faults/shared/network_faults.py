"""The common parts of network faults: the disturbed traffic, its peers, the duration, measurements of paths."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field, PrivateAttr

from harness.backends.contract import Disturbance, Node, Traffic
from harness.errors import FaultError, UsageError
from harness.faults.contract import Context, Fault, Targets
from harness.faults.shared.own_traffic import OwnTraffic
from harness.node.types import Arrivals
from harness.units import Duration

PACKETS, INTERVAL_S = 10, 0.002  # of a look whether any come through
Direction = Literal["egress", "ingress", "both"]
TOLERANCE = 0.25  # of what was asked: a busy machine must not make a run invalid; reached is usually 5 %


class NetworkFault(Fault):
    """The base of faults that disturb a node's network, and count the training's own bytes on the disturbed path."""

    network = True
    cuts: ClassVar[bool] = False  # nothing passes while it acts
    direction: Direction = Field("both", description="What the node sends (egress), receives (ingress), or both.")
    _acting: list[Disturbance] = PrivateAttr(default_factory=list)
    _own: list[tuple[OwnTraffic, float]] = PrivateAttr(default_factory=list)  # and since when

    def begin(self, act: Callable[[], Disturbance]) -> Disturbance:
        disturbance = act()
        self._acting.append(disturbance)
        return disturbance

    def watch(self, node: Node, traffic: Traffic, context: Context) -> None:
        """Starts to count the training's own bytes in the disturbed traffic of a node, until `heal`."""
        own = OwnTraffic(node, traffic, self.cuts, context)
        own.look(count=False)
        self._own.append((own, time.monotonic()))

    def look(self) -> None:
        for own, _ in self._own:
            own.look()

    def heal(self, targets: Targets, context: Context) -> None:
        while self._own:
            own, since = self._own.pop(0)
            own.look()
            own.tell(time.monotonic() - since)
        while self._acting:
            self._acting[-1].heal()
            self._acting.pop()

    def see_through(self, node: Node, partner: Node | None, detail: str, context: Context) -> None:
        """Checks that packets to and from `partner` (`None`: the control host) arrive, in each disturbed direction."""
        through = min(node.send_packets(partner, PACKETS, INTERVAL_S, back).received for back in self.ways())
        context.ended(through, PACKETS, "packets through", ok=through > 0, detail=detail)

    def ways(self) -> list[bool]:
        """Returns the disturbed directions as values of `back`: False for sent packets, True for received packets."""
        return {"egress": [False], "ingress": [True], "both": [False, True]}[self.direction]


class LastingFault(NetworkFault):
    duration: Duration | Literal["forever"] = Field(
        Duration("10s"), description="How long it lasts; forever: until the run ends."
    )

    def stay(self, context: Context) -> None:
        if self.duration == "forever":
            context.wait(float("inf"), until=lambda: False, meanwhile=self.look)
        else:
            context.wait(self.duration.s, meanwhile=self.look)

    def for_how_long(self) -> str:
        return "until the run ends" if self.duration == "forever" else f"for {self.duration}"


class NicFault(LastingFault):
    peers: Literal["all"] | list[int] = Field(
        "all", description="all traffic, or only that with these nodes (their places in the job)."
    )

    def traffic(self, node: Node, context: Context) -> Traffic:
        if self.peers == "all":
            return Traffic(self.direction)
        return Traffic(self.direction, tuple(self._peers_of(node, context)))

    def partner(self, node: Node, context: Context) -> Node | None:
        """Returns the other end of the network path to measure: another node, or `None` for the control host."""
        others = self._peers_of(node, context) if self.peers != "all" else context.cluster.nodes
        return next((other for other in others if other.alive and other.index != node.index), None)

    def with_whom(self) -> str:
        return "" if self.peers == "all" else f" in traffic with node {', '.join(map(str, self.peers))}"

    def _peers_of(self, node: Node, context: Context) -> list[Node]:
        places = context.cluster.nodes
        wrong = [index for index in self.peers if not 0 <= int(index) < len(places)]
        if wrong:
            raise UsageError(f"peers: {wrong}: the job has nodes 0 to {len(places) - 1}")
        found = [places[int(index)] for index in self.peers if int(index) != node.index]
        if not found:
            raise UsageError(f"peers: {list(self.peers)}: it names no other node than {node.name}")
        return found


def way(back: bool) -> str:
    return "received" if back else "sent"


def median_ms(arrivals: Arrivals) -> float:
    if not arrivals.delays_s:
        raise FaultError("not one packet came through: there is no delay to measure")
    return statistics.median(arrivals.delays_s) * 1e3


def near(measured: float, expected: float, slack: float = 0.0, tolerance: float = TOLERANCE) -> bool:
    return abs(measured - expected) <= max(tolerance * expected, slack)
