"""A rank trains on the wrong samples, for example because its sampler has the wrong number of ranks."""

from typing import Literal

from pydantic import Field

from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared import orders
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.parameters import Percentage


class DataSkew(orders.OrderedFault):
    """One batch of a rank holds fewer samples than it should, or holds some samples twice. Needs a trainer that carries
    out orders from the folder `CHAOS_DAMAGE`, as the reference trainer does."""

    kind: Literal["fewer", "duplicate"] = Field("fewer", description="What is wrong with the rank's samples.")
    share_percent: Percentage = Field(50, gt=0, le=100, description="Of its samples; one at least is left.")

    runbook = "F10"
    truth = Truth((Kind.BAD_DATA,), Place.RANK, (Decision.STOP, Decision.ROLL_BACK))
    may = frozenset({May.STOP, May.SKEW})

    def describe(self, targets: Targets) -> str:
        how = "are missing" if self.kind == "fewer" else "are others of its samples again"
        return f"in one batch of {name_ranks(targets)}, {self.share_percent:g} % of its samples {how}"

    def inject(self, targets: Targets, context: Context) -> None:
        for rank in ranks_of(targets):
            found = orders.order(context, rank, kind=self.kind, share=self.share_percent / 100)
            detail = f"rank {rank}, step {found['step']}: samples {self.kind}"
            context.effect(found["changed"], 1, "samples at least", ok=found["changed"] >= 1, detail=detail)


FAULT = DataSkew
