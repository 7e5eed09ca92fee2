"""A trainer's code raises an exception, for example because of a bug or a bad sample."""

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.strikes import RAISED


class ProcessException(inside.InsideFault):
    """Raises an exception in the training thread of a rank, right after a step. The fault itself ends no process. The
    trainer must log the harness's events, or run with the harness's observer, which logs these events."""

    text: str = Field("raised by a rehearsal", max_length=200, description="What the exception says.")

    runbook = "F1"
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE, Decision.STOP))

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "raise", self.text)

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: an exception comes up in the training thread after its next step"

    def inject(self, targets: Targets, context: Context) -> None:
        self.strike_all(targets, context, RAISED, "exceptions raised")


FAULT = ProcessException
