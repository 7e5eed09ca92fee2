"""A processor computes wrongly and says nothing: one bit of a gradient or a weight is flipped."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Target
from harness.faults.shared import orders
from harness.log.consequences import Consequences, May


class SilentDataCorruption(Fault):
    """One rank's own gradient (before the sum over ranks) or weight. Needs a trainer with the hook `CHAOS_DAMAGE`."""

    what: Literal["gradient", "weight"] = Field("gradient", description="Where the bit flips.")
    bit: int = Field(29, ge=0, le=31, description="Which bit of the float32: 31 sign, 23–30 exponent, below: fraction.")

    runbook = "F5"
    needs = frozenset({Verb.FILES})
    aims_at = "rank"
    may = frozenset({May.STOP})

    def consequences(self) -> Consequences:
        said = super().consequences()  # a gradient is summed over all ranks: they stay alike
        return replace(said, may=said.may | {May.DRIFT}) if self.what == "weight" else said

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return orders.environment(run_dir)

    def describe(self, targets: Sequence[Target]) -> str:
        ranks = ", ".join(str(target.rank) for target in targets)
        return f"bit {self.bit} of one {self.what} value flips on rank {ranks}, without a word"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        dice = random.Random(context.seed)
        for target in targets:
            assert target.rank is not None  # the planner resolves `aims_at: rank` to ranks
            found = orders.order(context, target.rank, kind=self.what, place=dice.random(), bit=self.bit)
            detail = (
                f"rank {target.rank}, {found['tensor']}, step {found['step']}: {found['before']} → {found['after']}"
            )
            context.effect(found["changed"], 1, "bits flipped", ok=found["changed"] == 1, detail=detail)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        orders.withdraw(context.run_dir, context.seed)

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        orders.see_withdrawn(context)


FAULT = SilentDataCorruption
