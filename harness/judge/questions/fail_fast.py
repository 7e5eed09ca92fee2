"""Fail fast: a job that cannot go on ends soon, by itself, and says why. Its GPUs are free for somebody else.

Judged only where a scenario expects it, as with a replacement that never comes. Then a failed job is what is asked for,
and one that goes on to its last step has not met the expectation.
"""

from __future__ import annotations

from pydantic import Field

from harness.judge.codes import Doubt
from harness.judge.score import Bounds, DurationNs, Evidence, Expectation, S, Score, ScoreResult, Verdict, at_most
from harness.timeline.timeline import Timeline
from harness.units import format_duration

SHOWN_MAX = 200  # characters of the job's last words in a report


class FailFastBounds(Bounds):
    """`max`: from the first fault until the last command has ended; `says`: words that the job's error must hold, in
    capital or small letters."""

    max: DurationNs
    says: str | None = Field(None, min_length=1, max_length=200)


class FailFast(Score):
    name = "fail_fast"
    order = 12
    Bounds = FailFastBounds

    def score(self, evidence: Evidence, bounds: FailFastBounds | None) -> ScoreResult:
        if bounds is None:
            return ScoreResult({})
        run = evidence.run
        ended = _ended_ns(run)
        taken = _taken_ns(run, ended)
        values = {"seconds": None if taken is None else taken / S, "gpu_seconds": _gpu_seconds(run, ended)}
        if reason := _did_not_fail(run):
            verdict = Verdict.FAIL if run.outcome in ("completed", "aborted") else Verdict.INCONCLUSIVE
            doubt = "" if verdict is Verdict.FAIL else Doubt.RUN_CUT_SHORT
            limit = f"≤ {format_duration(bounds.max)}"
            return ScoreResult(
                values, [Expectation("fail_fast.max", limit, "it did not", verdict, reason, doubt=doubt)]
            )
        late = f"the job held its GPUs for {format_duration(taken)} after the fault" if taken is not None else ""
        lines = [at_most("fail_fast.max", taken, bounds.max, _shown, late if (taken or 0) > bounds.max else "")]
        if bounds.says is not None:
            lines.append(_says(run.outcome_reason, bounds.says))
        why = " and said why" if bounds.says else ""
        return ScoreResult(values, lines, summary=f"the job gave up {_shown(taken)} after the fault{why}")


def _did_not_fail(run: Timeline) -> str:
    if run.outcome == "completed":
        return "the job went on to its end; the scenario expects that it gives up"
    if run.outcome == "aborted":
        return f"the job did not give up by itself: {run.outcome_reason or 'the run was aborted'}"
    return "" if run.outcome == "failed" else f"the run ended as {run.outcome or 'unknown'}"


def _ended_ns(run: Timeline) -> int | None:
    """When the last command had ended, of the nodes that no fault took."""
    kept = {(slot.node, slot.incarnation) for slot in run.slots if slot.kept}
    ends = (e["at"] for e in run.exits if e["rank"] is None and (e["node"], e["incarnation"]) in kept)
    return max(ends, default=None)


def _struck_ns(run: Timeline) -> int | None:
    return min((fault.injected for fault in run.faults if fault.injected is not None), default=None)


def _taken_ns(run: Timeline, ended: int | None) -> int | None:
    struck = _struck_ns(run)
    return None if struck is None or ended is None or ended < struck else ended - struck


def _gpu_seconds(run: Timeline, ended: int | None) -> float | None:
    """GPU time that the job held between the fault and its end."""
    struck = _struck_ns(run)
    if struck is None or ended is None:
        return None
    held = (min(slot.released, ended) - max(slot.allocated, struck) for slot in run.slots)
    return sum(max(0, each) for each in held) / S


def _says(told: str, wanted: str) -> Expectation:
    good = wanted.casefold() in told.casefold()
    reason = "" if good else f"the job did not say {wanted!r}, but: {told[:SHOWN_MAX] or 'nothing'}"
    verdict = Verdict.PASS if good else Verdict.FAIL
    return Expectation("fail_fast.says", repr(wanted), told[:SHOWN_MAX] or "—", verdict, reason)


def _shown(ns: float | None) -> str:
    return format_duration(round(ns)) if ns else "0 s"


SCORES = (FailFast(),)
