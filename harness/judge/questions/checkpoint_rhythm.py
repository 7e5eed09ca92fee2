"""Rhythm of checkpoints: after the recovery the job saves as often as the fault-free run does, to the end.

A save is *due* at each step of which the fault-free run committed a checkpoint. It was *made* when the run committed
one from half an interval before that step until the next one is due; so a late one counts, and so does a rhythm that
has moved. One that was not made counts as missed only where nothing disturbed the job meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from harness.emitter import abnormal
from harness.judge.codes import Doubt
from harness.judge.facts import comparable, tells, undisturbed
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bounds, Expectation, Percent, Score, ScoreResult, Verdict
from harness.timeline.timeline import Bools, Ints, Timeline

ITEM = "rhythm of checkpoints"
SHARE_STEPS_MIN = 4  # saves that were due, from which on their share counts
NAME = "checkpoint_rhythm"


class RhythmBounds(Bounds):
    """`max_missed`: so many saves in a row may be missing; `min_percent`: of those due, so many are made."""

    max_missed: int = Field(int(abnormal.CHECKPOINT_INTERVALS) - 1, ge=0)
    min_percent: Percent = 60.0


class Rhythm(Score):
    name = "checkpoint_rhythm"
    order = 41
    Bounds = RhythmBounds
    by_default = ITEM

    def score(self, evidence: Analysis, bounds: RhythmBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        values: dict[str, Any] = {"due": None, "missed": None, "missed_in_a_row": None}
        if "checkpoints" not in tells.told(run):
            return ScoreResult(values)  # that they are not told at all is said elsewhere
        usable = fault_free is not None and not comparable.flaw(run, fault_free)
        theirs = evidence.fault_free_saves if usable else None
        usual = theirs.steps if theirs else np.zeros(0, np.int64)
        if not len(usual):
            return ScoreResult(values, not_judged=[(ITEM, "no fault-free run shows when a checkpoint is due")])
        made = _after_the_fault(run, evidence.saves.steps, usual)
        missed, in_a_row = int((~made).sum()), _longest(~made)
        values = {"due": len(made), "missed": missed, "missed_in_a_row": in_a_row}
        if bounds is None:
            return ScoreResult(values)
        if (len(made) < 2 and missed > 0) or not len(made):
            why = f"{len(made) or 'no'} save was due after the recovery, outside faults"
            return ScoreResult(values, not_judged=[(ITEM, why)])
        return ScoreResult(values, list(_lines(run, made, bounds)))


def _lines(run: Timeline, made: Bools, bounds: RhythmBounds) -> list[Expectation]:
    missed, in_a_row, due = int((~made).sum()), _longest(~made), len(made)
    worse = Verdict.INCONCLUSIVE if run.dropped else Verdict.FAIL
    text = f"{missed} of {due} checkpoints that the fault-free run made in these steps are missing"
    lost = f"; {run.dropped} events were lost to a full disk" if run.dropped else ""
    good = in_a_row <= bounds.max_missed
    reason = "" if good else f"{text}, {in_a_row} in a row{lost}"
    lines = [_line("max_missed", f"≤ {bounds.max_missed} in a row", str(in_a_row), good, worse, reason)]
    if due >= SHARE_STEPS_MIN:
        percent = 100 * (due - missed) / due
        good = percent >= bounds.min_percent
        reason = "" if good else f"{text}{lost}"
        lines.append(_line("min_percent", f"≥ {bounds.min_percent:.1f} %", f"{percent:.1f} %", good, worse, reason))
    return lines


def _line(name: str, bound: str, observed: str, good: bool, worse: Verdict, reason: str) -> Expectation:
    doubt = "" if good or worse is Verdict.FAIL else Doubt.LINES_DROPPED
    return Expectation(f"{NAME}.{name}", bound, observed, Verdict.PASS if good else worse, reason, doubt=doubt)


def _after_the_fault(run: Timeline, committed: Ints, due: Ints) -> Bools:
    """Per save that was due in peace after the first disturbance (in a run without one: at all): was it made?"""
    interval = float(np.median(np.diff(due))) if len(due) > 1 else float(due[0])
    committed = np.append(committed, np.iinfo(np.int64).max)
    disturbed = undisturbed.windows(run)
    step, end = _last_time(run)
    due = due[(due >= step[0]) & (due <= step[-1])] if len(step) else due[:0]
    if not len(due):
        return np.zeros(0, np.bool_)
    made = committed[np.searchsorted(committed, due - interval / 2)] < due + interval
    begin = end[np.searchsorted(step, due)]
    until = end[np.minimum(np.searchsorted(step, due + interval - 1), len(step) - 1)]
    counts = undisturbed.quiet(begin, np.maximum(until, begin + 1), disturbed) | made
    if disturbed:
        counts &= begin >= disturbed[0][0]
    return np.asarray(made[counts], np.bool_)


def _last_time(run: Timeline) -> tuple[Ints, Ints]:
    """Each step that was completed, in order, and when it was completed last."""
    order = np.argsort(run.progress.step, kind="stable")  # rows are in order of time: the last of a step counts
    step, end = run.progress.step[order], run.progress.end[order]
    last = np.append(np.diff(step) > 0, True)[: len(step)]
    return step[last], end[last]


def _longest(rows: Bools) -> int:
    """The most `True` in a row."""
    return max((part.stop - part.start for part in undisturbed.stretches(rows)), default=0)


SCORES = (Rhythm(),)
