"""A C extension holds the interpreter lock: no thread of the process runs Python, neither heartbeats nor watchdogs."""

from pydantic import Field

from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node.emitter.strikes import LET_GO, SEIZED
from harness.units import Duration

SHARE_MIN, SLACK_S = 0.9, 5.0


class GilHold(inside.InsideFault):
    """Holds the interpreter lock of a rank's process right after a step, so that none of its Python threads runs. The
    trainer must log the harness's events, or run with the harness's observer, which logs these events."""

    duration: Duration = Field(Duration("5s"), description="For so long.")

    runbook = "F2"

    def true_answers(self) -> Truth:
        decisions = (Decision.IGNORE, Decision.RESTART_IN_PLACE)
        return Truth((Kind.HANG, Kind.STRAGGLER), Place.RANK, decisions).of_pause(self.duration)

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "seize", self.duration.s)

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: the interpreter lock is held for {self.duration} after its next step"

    def inject(self, targets: Targets, context: Context) -> None:
        victims = self.find_victims(targets, context)
        for rank in inside.strike_each(targets, context, SEIZED):
            node, pid = victims[rank]
            begin_ns = context.reached(rank, SEIZED)

            def over(rank: int = rank, begin_ns: int = begin_ns) -> bool:
                return context.reached(rank, LET_GO) >= begin_ns

            context.wait(self.duration.s + SLACK_S, until=lambda: over() or pid not in node.pids())  # noqa: B023
            held_s = (context.reached(rank, LET_GO) - begin_ns) / 1e9 if over() else 0.0
            steps = sum(took / 1e9 > self.duration.s for took in context.step_times_ns(rank, begin_ns))
            ended = not over() and pid not in node.pids()
            detail = f"rank {rank}: " + ("the job ended it meanwhile" if ended else f"{steps} long steps")
            ok = ended or held_s >= SHARE_MIN * self.duration.s
            context.effect(held_s, self.duration.s, "s without the interpreter", ok=ok, detail=detail)


FAULT = GilHold
