"""Some nodes cannot reach others, for example because of a wrong firewall rule or a missing route."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from harness.backends.contract import Node, Traffic, Verb
from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.network_faults import INTERVAL_S, PACKETS, LastingFault, way
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth

_WORDS = {"nodes": "the other nodes", "control": "the rendezvous store", "all": "everything"}


class Partition(LastingFault):
    """Cuts the targets off from the other nodes, from the rendezvous store, or from both, in one direction or in both
    directions. The targets still reach each other. Packets vanish: no process gets a reset or an error."""

    cut_off_from: Literal["nodes", "control", "all"] = Field(
        "nodes", description="the other nodes, the control host (rendezvous store), or all of them."
    )

    runbook = "F3"
    needs = frozenset({Verb.NET_PARTITION})
    may = frozenset({May.STOP})
    cuts = True

    def true_answers(self) -> Truth:
        either_side = self.cut_off_from != "control"
        return Truth((Kind.NETWORK,), Place.NODE, (Decision.IGNORE, Decision.RESTART_IN_PLACE), either_side)

    def over_rdma(self) -> bool | None:
        return None if self.cut_off_from == "control" else False

    def describe(self, targets: Targets) -> str:
        ways = {"both": "both ways", "egress": "in what they send", "ingress": "in what they receive"}[self.direction]
        return f"{name_nodes(targets)} cut off from {_WORDS[self.cut_off_from]} {ways}, {self.for_how_long()}"

    def inject(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        for node in nodes:
            inside = tuple(other for other in nodes if other is not node)
            spared = inside if self.cut_off_from != "control" else ()
            traffic = Traffic(self.direction, self.cut_off_from, spared)
            self.begin(functools.partial(node.cut, traffic))
            self.watch(node, traffic, context)
        context.injected()
        for node in nodes:
            for outsider in self._outsiders(nodes, context):
                self._measure(node, outsider, context)
        self.stay(context)

    def _outsiders(self, inside: Sequence[Node], context: Context) -> list[Node | None]:
        others = [node for node in context.cluster.nodes if node not in inside and node.alive][:1]
        kinds: dict[str, list[Node | None]] = {"nodes": [*others], "control": [None], "all": [*others, None]}
        return kinds[self.cut_off_from]

    def see_end(self, targets: Targets, context: Context) -> None:
        nodes = [context.node(target) for target in targets]
        for node in nodes:
            for outsider in self._outsiders(nodes, context):
                self.see_through(node, outsider, _names(node, outsider), context)

    def _measure(self, node: Node, outsider: Node | None, context: Context) -> None:
        for back in self.ways():
            through = node.send_packets(outsider, PACKETS, INTERVAL_S, back).received
            detail = f"{_names(node, outsider)}, {way(back)}"
            context.effect(through, 0, f"of {PACKETS} packets through", ok=through == 0, detail=detail)


def _names(node: Node, outsider: Node | None) -> str:
    return f"{node.name} and {outsider.name if outsider is not None else 'the control host'}"


FAULT = Partition
