"""Figures of the job as a whole.

Fail fast: a job that cannot go on ends soon, by itself, and says why. Its GPUs are free for somebody else. Judged only
where a scenario expects it, as with a replacement that never comes. Then a failed job is what is asked for, and one
that goes on to its last step has not met the expectation.
"""

from __future__ import annotations

from typing import Any

from harness.judge.bounds import FailFastBounds, JobBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import (
    Bound,
    Evidence,
    Expectation,
    S,
    Score,
    ScoreResult,
    line,
    shown_ns,
)
from harness.judge.verdict import Doubt, Verdict
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Timeline
from harness.units import format_duration

SHOWN_MAX = 200  # characters of the job's last words in a report


class JobScore(Score):
    name = "job"
    section = "metrics"
    order = 0

    def score(self, evidence: Analysis, bounds: JobBounds | None) -> ScoreResult:
        run = evidence.run
        values: dict[str, Any] = {
            "job_success": run.finished and run.outcome == "completed",
            "steps_done": run.reached_step,
            "steps_planned": run.planned_steps,
            "deaths": sum(end.code != 0 for end in evidence.ends),
            "deaths_unexplained": len(evidence.deaths_unexplained),
            "events_dropped": run.dropped,
            "logs_torn": len(run.torn),
        }
        return ScoreResult(values)


class FailFast(Score):
    name = "fail_fast"
    order = 12

    def score(self, evidence: Evidence, bounds: FailFastBounds | None) -> ScoreResult:
        if bounds is None:
            return ScoreResult({})
        run = evidence.run
        kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
        ends = (e["at"] for e in run.exits if e["rank"] is None and (e["node"], e["incarnation"]) in kept)
        ended = max(ends, default=None)  # the last command, of the nodes that no fault took
        struck = first_strike(run.faults)
        taken = held = None
        if struck < NEVER and ended is not None:
            taken = None if ended < struck else ended - struck
            # GPU time that the job held between the fault and its end
            spans = (min(slot.released, ended) - max(slot.allocated, struck) for slot in run.slots)
            held = sum(max(0, each) for each in spans) / S
        values = {"seconds": None if taken is None else taken / S, "gpu_seconds": held}
        if reason := _did_not_fail(run):
            cut = run.outcome not in ("completed", "aborted")
            verdict, doubt = (Verdict.INCONCLUSIVE, Doubt.RUN_CUT_SHORT) if cut else (Verdict.FAIL, "")
            limit = f"≤ {format_duration(bounds.max)}"
            return ScoreResult(
                values, [Expectation("fail_fast.max", limit, "it did not", verdict, reason, doubt=doubt)]
            )
        late = f"the job held its GPUs for {format_duration(taken)} after the fault" if taken is not None else ""
        lines = [Bound("fail_fast.max", shown_ns).line(bounds.max, taken, late if (taken or 0) > bounds.max else "")]
        why = ""
        if bounds.says is not None:
            told, why = run.outcome_reason[:SHOWN_MAX], " and said why"
            good = bounds.says.casefold() in run.outcome_reason.casefold()
            reason = "" if good else f"the job did not say {bounds.says!r}, but: {told or 'nothing'}"
            lines.append(line("fail_fast.says", repr(bounds.says), told or "—", reason))
        return ScoreResult(values, lines, summary=f"the job gave up {shown_ns(taken)} after the fault{why}")


def _did_not_fail(run: Timeline) -> str:
    if run.outcome == "completed":
        return "the job went on to its end; the scenario expects that it gives up"
    if run.outcome == "aborted":
        return f"the job did not give up by itself: {run.outcome_reason or 'the run was aborted'}"
    return "" if run.outcome == "failed" else f"the run ended as {run.outcome or 'unknown'}"


SCORES = (JobScore(), FailFast())
