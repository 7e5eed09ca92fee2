"""Does the job save as often as before its recovery ("3 of 9 checkpoints are missing")?

A save is *due* at each step of which the fault-free run committed a checkpoint. It was *made* when the run committed
one from half an interval before that step until the next one is due; so a late one counts, and so does a rhythm that
has moved. One that was not made counts as missed only where nothing disturbed the job meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from harness.judge.facts import by_time, reported
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Window
from harness.judge.facts.saves import Saves
from harness.judge.score import Bounds, Expectation, Measured, Percent, line
from harness.judge.verdict import Ground, Kind
from harness.node.emitter import abnormal
from harness.timeline.timeline import Bools, Ints, Timeline

SHARE_SAVES_MIN = 4  # saves that were due, from which on their share counts
SEEN_MIN = 3  # saves that the harness saw without a fault: if it sees none of them now, none was made
WRITTEN_NS = 100_000_000  # so soon after it told the end of a save, who writes it may make another one


class RhythmBounds(Bounds):
    """How regularly the job must save once it has recovered."""

    max_missed: int = Field(int(abnormal.CHECKPOINT_INTERVALS) - 1, ge=0, description="Saves missed in a row.")
    min_percent: Percent = Field(75.0, description="Of the saves that were due.")


class CheckpointRhythm(Measured):
    name = "checkpoint_rhythm"
    order = 41
    Bounds = RhythmBounds
    by_default = "rhythm of checkpoints"

    def values(self, evidence: Analysis) -> dict[str, Any]:
        usual = _usual_saves(evidence)
        if not _tells_saves(evidence) or not len(usual):
            return {"due": None, "missed": None, "missed_in_a_row": None}
        missed = ~_after_the_fault(evidence.run, evidence.saves, usual, evidence.disturbed)
        in_a_row = max((part.stop - part.start for part in by_time.stretches(missed)), default=0)
        return {"due": len(missed), "missed": int(missed.sum()), "missed_in_a_row": in_a_row}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: RhythmBounds) -> Sequence[Expectation] | str:
        due, missed, in_a_row = (values[name] for name in ("due", "missed", "missed_in_a_row"))
        if not _tells_saves(evidence):
            return ()  # that they are not told at all is said elsewhere
        if due is None:
            return "no fault-free run shows when a checkpoint is due"
        uneven = len(set(np.diff(_usual_saves(evidence)))) > 1
        if not evidence.run.checkpoints and (missed < due or due < SEEN_MIN or uneven):
            return ()  # what is only seen may have been there more often
        if (due < 2 and missed > 0) or not due:
            return f"{due or 'no'} save was due after the recovery, outside faults"
        none = next((f": one is none, as {each.why}" for each in evidence.saves.none.values()), "")
        text = f"{missed} of {due} checkpoints that the fault-free run made in these steps are missing"
        absent, percent = Ground(Kind.ABSENCE), 100 * (due - missed) / due
        reason = f"{text}, {in_a_row} in a row{none}" if in_a_row > bounds.max_missed else ""
        at_once = f"≤ {bounds.max_missed} in a row"
        lines = [line("checkpoint_rhythm.max_missed", at_once, str(in_a_row), reason, absent)]
        if due >= SHARE_SAVES_MIN:
            reason, least = text + none if percent < bounds.min_percent else "", f"≥ {bounds.min_percent:.1f} %"
            lines.append(line("checkpoint_rhythm.min_percent", least, f"{percent:.1f} %", reason, absent))
        return lines


def _tells_saves(evidence: Analysis) -> bool:
    return "checkpoints" in reported.told(evidence.run) or bool(evidence.saves.seen)


def _usual_saves(evidence: Analysis) -> Ints:
    """The steps of which the fault-free run committed a checkpoint, in order; as seen, where none is told."""
    run, fault_free, theirs = evidence.run, evidence.fault_free, evidence.fault_free_saves
    if fault_free is None or theirs is None or evidence.flaw(fault_free):
        return np.zeros(0, np.int64)
    return np.unique(np.array([save.step for save in (theirs.whole if run.checkpoints else theirs.seen)], np.int64))


def _after_the_fault(run: Timeline, saves: Saves, due: Ints, disturbed: Sequence[Window]) -> Bools:
    """Per save that was due in peace after the first disturbance (in a run without one: at all): was it made? It was
    not due while another one was being written: trainers wait for that, or leave it out."""
    interval = float(np.median(np.diff(due))) if len(due) > 1 else float(due[0])
    committed = np.append(saves.steps, np.iinfo(np.int64).max)
    order = np.argsort(run.progress.step, kind="stable")  # rows are in order of time: the last of a step counts
    step, end = run.progress.step[order], run.progress.end[order]
    last = np.append(np.diff(step) > 0, True)[: len(step)]
    step, end = step[last], end[last]
    due = due[(due >= step[0]) & (due <= step[-1])] if len(step) else due[:0]
    if not len(due):
        return np.zeros(0, np.bool_)
    made = committed[np.searchsorted(committed, due - interval / 2)] < due + interval
    begin = end[np.searchsorted(step, due)]
    until = end[np.minimum(np.searchsorted(step, due + interval - 1), len(step) - 1)]
    ended = ((save.begun, save.ended) for save in saves.good if save.begun is not None)
    writing = by_time.union((begun + 1, over + WRITTEN_NS) for begun, over in ended if over is not None)
    in_peace = by_time.quiet(begin, np.maximum(until, begin + 1), disturbed)
    counts = (in_peace & by_time.quiet(begin, begin + 1, writing)) | made
    if disturbed:
        counts &= begin >= disturbed[0][0]
    return np.asarray(made[counts], np.bool_)


SCORES = (CheckpointRhythm(),)
