"""Exit time: once its last step is done, the job ends about as soon as the fault-free run does."""

from __future__ import annotations

from pydantic import Field

from harness.judge.facts import undisturbed
from harness.judge.score import Bounds, DurationNs, Evidence, S, Score, ScoreResult, at_most
from harness.timeline.timeline import Timeline
from harness.units import format_duration

ITEM = "time of the exit"
FACTOR = 3
LEAST_NS = 30 * S


class ExitBounds(Bounds):
    """`max`: from the end of the last step until every node's command has ended; by default 3 times what the fault-free
    run takes, and at least 30 s."""

    max: DurationNs | None = Field(None)


class ExitTime(Score):
    name = "exit_time"
    order = 44
    Bounds = ExitBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: ExitBounds | None) -> ScoreResult:
        run = evidence.run
        taken = _exit_ns(run)
        usual = max((ns for other in evidence.fault_free_runs if (ns := _exit_ns(other)) is not None), default=None)
        values = {"seconds": _seconds(taken), "usual_seconds": _seconds(usual)}
        if bounds is None:
            return ScoreResult(values)
        why = _not_judged(run, taken)
        limit = bounds.max if bounds.max is not None else max(LEAST_NS, FACTOR * (usual or 0))
        if not why and taken is not None and taken > limit and usual is None and bounds.max is None:
            why = "no fault-free run shows how long the exit takes"
        if why or taken is None:
            return ScoreResult(values, not_judged=[(ITEM, why)])
        reason = f"the job took {format_duration(taken)} to end after its last step" if taken > limit else ""
        return ScoreResult(values, [at_most("exit_time.max", taken, limit, _shown, reason)])


def _exit_ns(run: Timeline) -> int | None:
    """From the end of the last step (or of the last disturbance, if that is later) to the end of the last command;
    `None` where no command ended after it."""
    if not len(run.progress) or run.outcome != "completed":
        return None
    last = int(run.progress.end[-1])
    ended = max((exit_["at"] for exit_ in run.exits if exit_["rank"] is None and exit_["at"] >= last), default=None)
    if ended is None:
        return None
    over = max((end for begin, end in undisturbed.windows(run) if begin <= ended), default=last)
    return ended - max(last, over) if over <= ended else None


def _not_judged(run: Timeline, taken: int | None) -> str:
    if taken is not None:
        return ""
    if run.outcome != "completed":
        return "the job did not finish"
    return "a fault was active until the end, or the ends of the commands were not recorded"


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / S


def _shown(ns: float) -> str:
    return format_duration(round(ns)) if ns else "0 s"


SCORES = (ExitTime(),)
