"""A GPU has too little memory for a rank's part of the batch, for example because of longer sequences."""

from pydantic import Field

from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared import orders
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

STRUCK_WITHIN_S = 60.0


class OutOfMemory(orders.OrderedFault):
    """The forward pass of a rank raises PyTorch's `OutOfMemoryError` for a micro-batch with more than `fits` sequences.
    The fault fills no memory, so it works on a CPU, too. Needs a trainer that carries out orders from the folder
    `CHAOS_DAMAGE`, as the reference trainer does."""

    fits: int = Field(2, ge=1, le=2**20, description="So many sequences fit in one forward pass.")
    duration: Duration = Field(Duration("3s"), description="How long memory is short.")

    runbook = "F6"
    truth = Truth((Kind.GPU, Kind.CRASH), Place.RANK, (Decision.RESTART_IN_PLACE, Decision.IGNORE))

    def describe(self, targets: Targets) -> str:
        what = f"pieces of more than {self.fits} sequences fail"
        return f"for {self.duration}, memory of {name_ranks(targets)} is short: {what}"

    def inject(self, targets: Targets, context: Context) -> None:
        answers = orders.order_each(context, ranks_of(targets), STRUCK_WITHIN_S, kind="out_of_memory", fits=self.fits)
        for rank, found in answers.items():
            over = found["changed"]
            detail = f"rank {rank}, step {found['step']}: memory for {self.fits} sequences"
            detail += "" if over >= 1 else ", and its pieces are not larger"
            context.effect(over, 1, "sequences too many at least", ok=over >= 1, detail=detail)
        context.wait(self.duration.s)


FAULT = OutOfMemory
