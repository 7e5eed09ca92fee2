"""A healthy job does no training step for a while: it evaluates, saves, or compiles."""

from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Targets, name_ranks, ranks_of
from harness.faults.shared import inside, orders
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

MEETS = {  # what the pause is to the trainer, and in the sentence of the plan
    "evaluation": "evaluates",
    "save": "saves, and the training waits for it",
    "compile": "compiles its model",
}
TAKEN_WITHIN_S = 60.0
WATCHED_S = 0.5  # how long it is looked at to see that no rank does a step


class BenignPause(orders.OrderedFault):
    """All ranks pause together for a good reason, which their trainer logs. Because nothing is wrong, the job must not
    restart, raise an alarm, or exclude a node. Needs a trainer that carries out orders from the folder `CHAOS_DAMAGE`,
    as the reference trainer does.

    If the fault is injected before the first step (`when: {after: 0s}`), the first step takes as long as the pause.
    """

    kind: Literal["evaluation", "save", "compile"] = Field("evaluation", description="What it does meanwhile.")
    duration: Duration = Field(Duration("10s"), description="For so long.")

    runbook = "F9"
    needs = frozenset({Verb.FILES, Verb.SIGNAL})
    may = frozenset()
    benign = True
    truth = Truth((Kind.NONE,), Place.JOB, (Decision.IGNORE,))

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: the job {MEETS[self.kind]} for {self.duration}; nothing is wrong"

    def inject(self, targets: Targets, context: Context) -> None:
        ranks = sorted(ranks_of(targets))
        first = orders.step_ahead(context, ranks) if orders.newest_step(context, ranks) else 1
        order = {"kind": "pause", "section": self.kind, "factor": self.duration.s, "from_step": first, "steps": 1}
        answers = orders.order_each(context, ranks, TAKEN_WITHIN_S, acts_at_once=False, **order)
        orders.withdraw(context.run_dir, context.seed)  # a process that is started anew does not pause again
        if late := [rank for rank, answer in answers.items() if answer["changed"] != 1]:
            raise FaultError(f"the order for step {first} reached rank {late[0]} too late: it did not pause there")
        victims = [context.pid_of(rank) for rank in ranks]
        context.wait(WATCHED_S)
        steps = max(0, orders.newest_step(context, ranks) - first + 1)  # those before it may be told only now
        unit = f"steps from step {first} on in {WATCHED_S:g} s of {self.kind}"
        context.effect(steps, 0, unit, ok=steps == 0)
        context.wait(self.duration.s, until=lambda: all(inside.is_gone(*victim) for victim in victims))


FAULT = BenignPause
