"""A processor computes wrongly and says nothing: one bit of a gradient or a weight is flipped."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from pydantic import Field

from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared import orders
from harness.log.consequences import Consequences, May
from harness.log.truth import Decision, Kind, Place, Truth


class SilentDataCorruption(orders.OrderedFault):
    """One rank's own gradient (before the sum over ranks) or weight. Needs a trainer with the hook `CHAOS_DAMAGE`."""

    what: Literal["gradient", "weight"] = Field("gradient", description="Where the bit flips.")
    bit: int = Field(29, ge=0, le=31, description="Which bit of the float32: 31 sign, 23–30 exponent, below: fraction.")

    runbook = "F5"
    truth = Truth((Kind.CORRUPTION,), Place.RANK, (Decision.ROLL_BACK, Decision.EVICT_NODE))
    may = frozenset({May.STOP, May.MOVE})

    def consequences(self) -> Consequences:
        said = super().consequences()  # a gradient is summed over all ranks: they stay alike
        return replace(said, may=said.may | {May.DRIFT}) if self.what == "weight" else said

    def describe(self, targets: Targets) -> str:
        return f"bit {self.bit} of one {self.what} value flips on {name_ranks(targets)}, without a word"

    def inject(self, targets: Targets, context: Context) -> None:
        dice = random.Random(context.seed)
        for rank in ranks_of(targets):
            found = orders.order(context, rank, kind=self.what, place=dice.random(), bit=self.bit)
            detail = f"rank {rank}, {found['tensor']}, step {found['step']}: {found['before']} → {found['after']}"
            context.effect(found["changed"], 1, "bits flipped", ok=found["changed"] == 1, detail=detail)


FAULT = SilentDataCorruption
