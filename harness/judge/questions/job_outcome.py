"""Measures the outcome of the job, such as its steps and dead processes, and whether the job fails fast.

A job that cannot go on fails fast if it ends soon, by itself, and with an error that says why. An early end frees the
job's GPUs for other jobs. Failing fast is judged only if a scenario expects the job to give up, for example because no
replacement comes for a lost node. A job that is expected to give up, but goes on to its last step, fails.
"""

from harness.judge.bounds import FailFastBounds, JobBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bound, S, Score, ScoreResult, left_open, line, shown_ns
from harness.judge.verdict import Doubt
from harness.timeline.sorted_events import first_strike, key_of

SHOWN_MAX = 200  # characters of the job's last words in a report
NAME = "fail_fast.max"


def job(evidence: Analysis, bounds: JobBounds | None) -> ScoreResult:
    run = evidence.run
    return ScoreResult(
        {
            "job_success": run.finished and run.outcome == "completed",
            "steps_done": run.reached_step,
            "steps_planned": run.planned_steps,
            "deaths": sum(end.code != 0 for end in evidence.ends),
            "deaths_unexplained": len(evidence.deaths_unexplained),
            "events_dropped": run.dropped,
            "logs_torn": len(run.torn),
        }
    )


def fail_fast(evidence: Analysis, bounds: FailFastBounds | None) -> ScoreResult:
    if bounds is None:
        return ScoreResult({})
    run, (taken, held) = evidence.run, _taken(evidence)
    values = {"seconds": None if taken is None else taken / S, "gpu_seconds": held}
    limit, says = f"≤ {shown_ns(bounds.max)}", run.outcome_reason
    went_on = {
        "completed": "the job went on to its end; the scenario expects that it gives up",
        "aborted": f"the job did not give up by itself: {says or 'the run was aborted'}",
    }
    if why := went_on.get(run.outcome or ""):
        return ScoreResult(values, [line(NAME, limit, "it did not", why)])
    if run.outcome != "failed":
        why = f"the run ended as {run.outcome or 'unknown'}"
        return ScoreResult(values, [left_open(NAME, limit, why, Doubt.RUN_CUT_SHORT)])
    late = f"the job held its GPUs for {shown_ns(taken)} after the fault" if (taken or 0) > bounds.max else ""
    lines = [Bound(NAME, shown_ns).line(bounds.max, taken, late)]
    if bounds.says is not None:
        good = bounds.says.casefold() in says.casefold()
        why = "" if good else f"the job did not say {bounds.says!r}, but: {says[:SHOWN_MAX] or 'nothing'}"
        lines.append(line("fail_fast.says", repr(bounds.says), says[:SHOWN_MAX] or "—", why))
    told = "" if bounds.says is None else " and said why"
    return ScoreResult(values, lines, summary=f"the job gave up {shown_ns(taken)} after the fault{told}")


def _taken(evidence: Analysis) -> tuple[int | None, float | None]:
    """Returns the time (ns) from the first fault until the commands on all remaining nodes had ended, and the
    GPU-seconds that the job held in this time."""
    run, struck = evidence.run, first_strike(evidence.run.faults)
    commands = (end for end in run.exits if end["rank"] is None)
    ends = (end["at"] for end in commands if key_of(end) in evidence.places.kept)
    ended = max(ends, default=-1)
    if ended < struck:
        return None, None
    spans = (min(slot.released, ended) - max(slot.allocated, struck) for slot in run.slots)
    return ended - struck, sum(max(0, each) for each in spans) / S


SCORES = (Score("job", 0, job, section="metrics"), Score("fail_fast", 12, fail_fast))
