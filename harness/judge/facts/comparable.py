"""Which fault-free runs a run may be compared with: undisturbed and finished ones of the same seed."""

from __future__ import annotations

import numpy as np

from harness.judge.facts import skipped
from harness.timeline.timeline import Timeline

HOLES_MAX = 1  # steps without a loss of a rank that tells one in every step: a lost field; more are NaN


def flaw(run: Timeline, other: Timeline) -> str:
    """Why nothing may be drawn from `other`, a run without faults beside `run`; an empty text: nothing is wrong."""
    if any(fault.injected is not None for fault in other.faults):
        return "a fault struck it"
    if other.outcome != "completed" or not other.finished:
        return "it did not finish"
    if len(other.epochs) != 1:
        return "it restarted or went back to an earlier step"
    if other.plan.get("seed") != run.plan.get("seed"):
        return "it has another seed"
    return "its loss is not a number in some steps" if _has_nan(other) else ""


def _has_nan(timeline: Timeline) -> bool:
    """Whether the lowest rank that tells a loss left it out in several steps, where it tells one in most; or before its
    first or after its last one for longer than it ever does in between, as trainers that tell it now and then do."""
    steps = timeline.steps
    finite = np.isfinite(steps.loss)
    if not finite.any():
        return False
    rows = steps.rank == steps.rank[finite].min()
    mine = finite[rows]
    if len(steps.applied):
        mine |= skipped.by_scale(~mine & (steps.applied[rows] == 0))  # an overflow that gradient scaling is there for
    told = np.flatnonzero(mine)
    gaps = np.diff(told)
    usual = int(gaps.max(initial=HOLES_MAX))
    if told[0] > usual or len(mine) - 1 - told[-1] > usual:
        return True
    return bool(len(gaps) and np.median(gaps) == 1 and (gaps - 1).sum() > HOLES_MAX)
