"""Workers fail before their first step, because they exit, or because they get a wrong rank or world size."""

import time
from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.faults.contract import Context, Fault, Hold, Targets, name_ranks
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

STARTED = "started"  # the first event of a worker
MISLED = "misled"  # the failpoint at which a worker has been told a wrong place
_VARIABLES = {"crash": "", "wrong_rank": "RANK", "wrong_world": "WORLD_SIZE"}


class StartFailure(Fault):
    """The next `times` starts of a rank's worker fail. The trainer must log events by the harness's emitter.

    With `crash`, the worker exits at once with `code`, as after a missing mount, a bad image or an occupied port. With
    `wrong_rank` or `wrong_world`, the worker's environment names a neighbour's rank, or a world size that is too large
    by 1, as after a stale host file or a launcher restarted by hand. The environment is wrong from the worker's log
    event `started` on.
    """

    kind: Literal["crash", "wrong_rank", "wrong_world"] = Field("crash", description="What is wrong with a start.")
    times: int = Field(2, ge=1, le=50, description="How many starts fail before one succeeds.")
    code: int = Field(1, ge=1, le=255, description="The exit code of a worker that crashes.")
    within: Duration = Field(Duration("60s"), description="How long to wait for these starts.")

    runbook = "F1"
    needs = frozenset({Verb.SIGNAL})
    aims_at = "rank"
    may = frozenset({May.STOP})
    truth = Truth((Kind.CRASH,), Place.RANK, (Decision.RESTART_IN_PLACE,))

    def holds(self, targets: Targets) -> list[Hold]:
        match, wrong = {"event": STARTED}, _VARIABLES[self.kind]
        return [Hold(match, target.rank, strikes=self.times, code=self.code, mislead=wrong) for target in targets]

    def describe(self, targets: Targets) -> str:
        wrong = _VARIABLES[self.kind]
        return f"the next {self.times} starts of {name_ranks(targets)} " + (
            f"are told a wrong {wrong}" if wrong else f"end with exit code {self.code}"
        )

    def inject(self, targets: Targets, context: Context) -> None:
        asked, failed = self.times * len(targets), 0
        deadline = time.monotonic() + self.within.s
        context.hold()
        context.injected()
        while failed < asked and context.wait(deadline - time.monotonic(), until=lambda: context.caught() is not None):
            rank = context.caught()
            if rank is None:  # another cause killed it just now
                continue
            failed += 1
            if self.kind == "crash":
                context.effect(failed, failed, "failed starts", ok=True, detail=f"exit code {self.code}")
                context.strike()
            else:
                self._mislead(rank, context, failed, deadline)
        if failed < asked:
            context.effect(failed, asked, "failed starts", ok=False, detail=f"within {self.within}")

    def _mislead(self, rank: int, context: Context, number: int, deadline: float) -> None:
        before = context.reached(rank, MISLED)
        context.strike()
        context.wait(deadline - time.monotonic(), until=lambda: context.reached(rank, MISLED) != before)
        told = context.reached(rank, MISLED)
        detail = f"rank {rank} was told a wrong {_VARIABLES[self.kind]}"
        context.effect(number, number, "failed starts", ok=told != before, detail=detail)
        node, pid = context.pid_of(rank)

        def stepped() -> bool:
            return bool(context.step_times_ns(rank, told))

        context.wait(deadline - time.monotonic(), until=lambda: pid not in node.pids() or stepped())
        if stepped():
            context.effect(number - 1, number, "failed starts", ok=False, detail=f"{detail}, and trains all the same")

    def heal(self, targets: Targets, context: Context) -> None:
        context.let_go()


FAULT = StartFailure
