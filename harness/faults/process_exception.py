"""A trainer's code raises: a bug, a bad sample, a lost file handle. Its process lives on until something ends it."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.strikes import RAISED

ENDS_WITHIN_S = 5.0


class ProcessException(inside.InsideFault):
    """An exception comes up in the training thread of a rank, right after a step.

    The trainer must emit our events itself, or be observed."""

    text: str = Field("raised by a rehearsal", max_length=200, description="What the exception says.")

    runbook = "F1"
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE, Decision.STOP))

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "raise", self.text)

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: an exception comes up in the training thread after its next step"

    def inject(self, targets: Targets, context: Context) -> None:
        victims = self.find_victims(targets, context)
        raised = inside.strike_each(targets, context, RAISED)
        ended = [rank for rank in raised if context.wait(ENDS_WITHIN_S, until=partial(inside.is_gone, *victims[rank]))]
        lived = f"; rank {', '.join(str(r) for r in raised if r not in ended)} lives on" if raised != ended else ""
        ok = len(raised) == len(targets)
        context.effect(len(raised), len(targets), "exceptions raised", ok=ok, detail=f"{len(ended)} ended{lived}")


FAULT = ProcessException
