"""A GPU has too little memory for a rank's part of the batch: longer sequences, another job's leftovers, fragments."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Target
from harness.faults.shared import orders
from harness.log.consequences import May
from harness.units import Duration

STRUCK_WITHIN_S = 60.0


class OutOfMemory(Fault):
    """The forward pass of a rank raises PyTorch's `OutOfMemoryError` for a piece of the batch with more than `fits`
    sequences. No memory is filled: it works on a CPU, too. Needs a trainer with the hook `CHAOS_DAMAGE`."""

    fits: int = Field(2, ge=1, le=2**20, description="So many sequences fit in one forward pass.")
    duration: Duration = Field(Duration("3s"), description="How long memory is short.")

    runbook = "F6"
    needs = frozenset({Verb.FILES})
    aims_at = "rank"
    may = frozenset({May.STOP})

    def lasts(self) -> Duration | None:
        return self.duration

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return orders.environment(run_dir)

    def describe(self, targets: Sequence[Target]) -> str:
        ranks = ", ".join(str(target.rank) for target in targets)
        return f"for {self.duration}, memory of rank {ranks} is short: pieces of more than {self.fits} sequences fail"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        ranks = [target.rank for target in targets if target.rank is not None]
        answers = orders.order_each(context, ranks, STRUCK_WITHIN_S, kind="out_of_memory", fits=self.fits)
        for rank, found in answers.items():
            over = found["changed"]
            detail = f"rank {rank}, step {found['step']}: memory for {self.fits} sequences"
            detail += "" if over >= 1 else ", and its pieces are not larger"
            context.effect(over, 1, "sequences too many at least", ok=over >= 1, detail=detail)
        context.wait(self.duration.s)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        orders.withdraw(context.run_dir, context.seed)

    def see_end(self, targets: Sequence[Target], context: Context) -> None:
        orders.see_withdrawn(context)


FAULT = OutOfMemory
