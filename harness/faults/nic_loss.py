"""Packets of a node vanish or arrive damaged, for example because of a dirty optic or a full switch buffer."""

from __future__ import annotations

import functools
import math

from pydantic import Field, model_validator

from harness.backends.contract import Node, Verb
from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.network_faults import NicFault, near, way
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.types import Impairment
from harness.parameters import Percentage

PACKETS_MIN, PACKETS_MAX, PACKETS_AFTER_MAX = 500, 10_000, 2000
INTERVAL_S = 0.0002
SIGMAS = 4.0


class NicLoss(NicFault):
    """A share of the node's packets is lost, one by one or in bursts, or damaged so that checksums fail."""

    loss_percent: Percentage = Field(0, ge=0, le=90, description="Share of packets lost, each way.")
    burst: float = Field(1, ge=1, le=1000, description="Mean number of packets lost in a row; 1: each by itself.")
    damage_percent: Percentage = Field(0, ge=0, le=90, description="Share of packets in which a bit is flipped.")

    runbook = "F3"
    needs = frozenset({Verb.NET_LOSS})
    may = frozenset({May.STOP})
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.EVICT_NODE, Decision.IGNORE))

    @model_validator(mode="after")
    def _something(self) -> NicLoss:
        if self.loss_percent == 0 and self.damage_percent == 0:
            raise ValueError("loss_percent: or damage_percent: must be above 0")
        if self.loss_percent > 100 * self.burst / (self.burst + 1) and self.burst > 1:
            raise ValueError(f"loss_percent: {self.loss_percent:g} cannot come in bursts of only {self.burst:g}")
        return self

    def describe(self, targets: Targets) -> str:
        bursts = f" in bursts of {self.burst:g}" if self.burst > 1 else ""
        parts = [f"{self.loss_percent:g}% of packets lost{bursts}"] if self.loss_percent else []
        parts += [f"{self.damage_percent:g}% damaged"] if self.damage_percent else []
        what = f"{' and '.join(parts)}, {self.direction}{self.with_whom()}"
        return f"{name_nodes(targets)}: {what}, {self.for_how_long()}"

    def inject(self, targets: Targets, context: Context) -> None:
        asked = Impairment(
            loss_percent=self.loss_percent,
            burst=self.burst,
            damage_percent=self.damage_percent,
            seed=context.seed % 2**32,
        )
        for target in targets:
            node = context.node(target)
            self.begin(functools.partial(node.impair, asked, self.traffic(node, context)))
            self.watch(node, self.traffic(node, context), context)
            context.injected()
            for back in self.ways():
                self._measure(node, back, context)
        self.stay(context)

    def _measure(self, node: Node, back: bool, context: Context) -> None:
        count = self._packets()
        found = node.send_packets(self.partner(node, context), count, INTERVAL_S, back)
        lost = found.sent - found.received - found.damaged
        where = f"{node.name}, {way(back)}: {count} packets"
        for share, asked, what, burst in (
            (lost / count, self.loss_percent / 100, "lost", self.burst),
            (found.damaged / count, self.damage_percent / 100 * (1 - self.loss_percent / 100), "damaged", 1.0),
        ):
            if asked:
                slack = SIGMAS * math.sqrt(asked * (1 - asked) * (2 * burst - 1) / count)
                ok = share > 0 and near(share, asked, slack)
                context.effect(share * 100, asked * 100, f"% of packets {what}", ok=ok, detail=where)

    def see_end(self, targets: Targets, context: Context) -> None:
        asked, count = max(self.loss_percent, self.damage_percent), min(self._packets(), PACKETS_AFTER_MAX)
        for node in [context.node(target) for target in targets]:
            for back in self.ways():
                found = node.send_packets(self.partner(node, context), count, INTERVAL_S, back)
                bad = 100 * (1 - found.received / count)
                where = f"{node.name}, {way(back)}: {count} packets"
                context.ended(bad, 0, "% of packets lost or damaged", ok=bad < asked / 2, detail=where)

    def _packets(self) -> int:
        """Returns how many packets to send so that the measured loss is exact to about 5 %."""
        rarest = min(percent / 100 for percent in (self.loss_percent, self.damage_percent) if percent)
        wanted = 400 * (1 - rarest) / rarest * (2 * self.burst - 1)
        return int(min(max(wanted, PACKETS_MIN), PACKETS_MAX))


FAULT = NicLoss
