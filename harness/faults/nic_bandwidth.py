"""A network interface works at a fraction of its speed, for example because of a half-broken cable."""

from __future__ import annotations

from pydantic import Field, PrivateAttr, model_validator

from harness.backends.contract import Node, Verb
from harness.faults.contract import Context, Targets, name_nodes
from harness.faults.shared.network_faults import TOLERANCE, NicFault, near, way
from harness.log.truth import Decision, Kind, Place, Truth
from harness.parameters import Percentage
from harness.units import Rate

BEFORE_S, DURING_S, AFTER_S = 0.3, 1.0, 0.15  # of measuring
LOOKS_MAX, CLOSE = 3, 0.9  # what else a busy host does makes a path slower, never faster: the best look counts
RATE_BITS_MIN = 64_000


class NicBandwidth(NicFault):
    """Limits the speed of a node's network, separately in each direction. The harness measures the limited speed by a
    real data transfer."""

    rate: Rate | None = Field(None, description="The speed that is left.")
    percent: Percentage | None = Field(None, gt=0, lt=100, description="Or this share of the speed just before.")

    runbook = "F3"
    needs = frozenset({Verb.NET_RATE})
    truth = Truth((Kind.NETWORK,), Place.NODE, (Decision.EVICT_NODE, Decision.IGNORE))
    _limited: list[tuple[Node, Node | None, int]] = PrivateAttr(default_factory=list)  # node, partner, bits a second

    @model_validator(mode="after")
    def _one_of_both(self) -> NicBandwidth:
        if (self.rate is None) == (self.percent is None):
            raise ValueError("give either rate: or percent:")
        if self.rate is not None and self.rate.bits_per_s < RATE_BITS_MIN:
            raise ValueError(f"rate: {self.rate}: at least 64kbit")
        return self

    def describe(self, targets: Targets) -> str:
        left = self.rate or f"{self.percent:g}% of its speed"
        return f"{name_nodes(targets)}: network at {left}, {self.direction}{self.with_whom()}, {self.for_how_long()}"

    def inject(self, targets: Targets, context: Context) -> None:
        for target in targets:
            self._limit(context.node(target), context)
        self.stay(context)

    def _limit(self, node: Node, context: Context) -> None:
        partner = self.partner(node, context)
        before = {back: node.fill_path(partner, BEFORE_S, back) for back in self.ways()}
        rate = self._rate_bits(min(before.values()))
        self._limited.append((node, partner, rate))
        limit = self.begin(lambda: node.limit_rate(rate, self.traffic(node, context)))
        self.watch(node, self.traffic(node, context), context)
        context.injected()
        for back in self.ways():
            reached = 0.0
            for _ in range(LOOKS_MAX):
                reached = max(reached, node.fill_path(partner, DURING_S, back, through=limit))
                if reached >= CLOSE * rate:
                    break
            detail = f"{node.name}, {way(back)}: {before[back] / 1e6:.0f} Mbit/s before"
            context.effect(reached / 1e6, rate / 1e6, "Mbit/s", ok=near(reached, rate), detail=detail)

    def see_end(self, targets: Targets, context: Context) -> None:
        """Checks that the network is faster than the limit. Full speed is not required, as the job uses the network."""
        for node, partner, rate in self._limited:
            for back in self.ways():
                reached, wanted = 0.0, (1 + TOLERANCE) * rate
                for _ in range(LOOKS_MAX):
                    reached = max(reached, node.fill_path(partner, AFTER_S, back))
                    if reached > wanted:
                        break
                detail = f"{node.name}, {way(back)}: limited to {rate / 1e6:g} Mbit/s before"
                context.ended(reached / 1e6, wanted / 1e6, "Mbit/s at least", ok=reached > wanted, detail=detail)

    def _rate_bits(self, before: float) -> int:
        if self.rate is not None:
            return self.rate.bits_per_s
        assert self.percent is not None  # one of both, as validated
        return max(RATE_BITS_MIN, int(before * self.percent / 100))


FAULT = NicBandwidth
