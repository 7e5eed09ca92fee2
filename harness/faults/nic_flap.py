"""A network link goes down and comes back again and again, for example because of a loose cable."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.backends.contract import Disturbance, Node, Traffic, Verb
from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.network_faults import INTERVAL_S, PACKETS, NetworkFault, way
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

BACK_S = 10.0  # until packets must come through again


class NicFlap(NetworkFault):
    """The node's link goes down and up. While the link is down, there is no carrier, and all packets in both directions
    vanish."""

    down: Duration = Field(Duration("1s"), description="How long it is down each time.")
    up: Duration = Field(Duration("2s"), description="How long it is up in between.")
    cycles: int = Field(3, ge=1, le=10_000, description="How often it goes down.")
    duration: Literal["cycles"] = Field("cycles", description="As long as its cycles take.")
    direction: Literal["both"] = Field("both", description="A link is down both ways.")

    runbook = "F3"
    needs = frozenset({Verb.NET_LINK})
    may = frozenset({May.STOP})
    cuts = True
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.EVICT_NODE, Decision.IGNORE))

    def describe(self, targets: Targets) -> str:
        return f"{name_nodes(targets)}: link down for {self.down}, then up for {self.up}, {self.cycles} times"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        for cycle in range(1, self.cycles + 1):
            down = [(node, self.begin(node.unplug)) for node in nodes]
            for own, _ in self._own:
                own.look(count=False)  # what passes while the link is up is not counted
            for node in nodes if not self._own else ():
                self.watch(node, Traffic(), context)
            context.injected()
            for node in nodes:
                self._measure(node, cycle, context)
            context.wait(self.down.s, meanwhile=self.look)
            self.look()
            for node, disturbance in down:
                self._plug(node, disturbance, context)
            if cycle < self.cycles:
                context.wait(self.up.s)

    def see_end(self, targets: Targets, context: Context) -> None:
        for node in [context.node(target) for target in targets]:
            self.see_through(node, None, node.name, context)

    def _measure(self, node: Node, cycle: int, context: Context) -> None:
        for back in self.ways():
            through = node.send_packets(None, PACKETS, INTERVAL_S, back).received
            detail = f"{node.name}, {way(back)}, cycle {cycle}"
            context.effect(through, 0, f"of {PACKETS} packets through", ok=through == 0, detail=detail)

    def _plug(self, node: Node, disturbance: Disturbance, context: Context) -> None:
        disturbance.heal()
        if node.alive:
            context.wait(BACK_S, until=lambda: node.send_packets(None, 1, 0).received == 1)


FAULT = NicFlap
