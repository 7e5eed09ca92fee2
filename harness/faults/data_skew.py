"""A rank trains on the wrong samples: a sampler with the wrong number of ranks, a shard list that is too short."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Target
from harness.faults.shared import orders
from harness.log.consequences import May
from harness.parameters import Percentage


class DataSkew(Fault):
    """One batch of a rank holds fewer samples than its part, or some twice. Needs a trainer with the hook
    `CHAOS_DAMAGE`."""

    kind: Literal["fewer", "duplicate"] = Field("fewer", description="What is wrong with the rank's samples.")
    share_percent: Percentage = Field(50, gt=0, le=100, description="Of its samples; one at least is left.")

    runbook = "F10"
    needs = frozenset({Verb.FILES})
    aims_at = "rank"
    may = frozenset({May.STOP})

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return orders.environment(run_dir)

    def describe(self, targets: Sequence[Target]) -> str:
        ranks = ", ".join(str(target.rank) for target in targets)
        how = "are missing" if self.kind == "fewer" else "are others of its samples again"
        return f"in one batch of rank {ranks}, {self.share_percent:g} % of its samples {how}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        for target in targets:
            assert target.rank is not None  # the planner resolves `aims_at: rank` to ranks
            found = orders.order(context, target.rank, kind=self.kind, share=self.share_percent / 100)
            detail = f"rank {target.rank}, step {found['step']}: samples {self.kind}"
            context.effect(found["changed"], 1, "samples at least", ok=found["changed"] >= 1, detail=detail)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        orders.withdraw(context.run_dir, context.seed)

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        orders.see_withdrawn(context)


FAULT = DataSkew
