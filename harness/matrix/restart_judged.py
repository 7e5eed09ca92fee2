"""A restart and a whole sweep, judged from the logs of their runs alone."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import numpy as np

from harness.matrix import resume_comparison
from harness.matrix.moments import Moment
from harness.matrix.resume_comparison import Finding, Kind, Usual
from harness.matrix.sweep import BASE, NONE_FORGOTTEN, REPEAT, RESUMED, Forgotten, Sweep, Tried
from harness.matrix.told_saves import told_saves
from harness.timeline import timeline
from harness.timeline.timeline import Timeline


def usual_of(folder: pathlib.Path, sweep: Sweep) -> Usual:
    """The run without a stop. Raises `EventLogError` where its log cannot be read."""
    run = timeline.load(folder / BASE)
    return Usual(run, sweep.ends or [], sweep.repeats is not False, sweep.apart, told_saves(run))


def repeated(usual: Usual, sweep: Sweep, folder: pathlib.Path) -> Usual:
    """With what a repeat of the run shows: whether the job repeats itself bit for bit, or how far it is off."""
    sweep.repeats, sweep.apart = resume_comparison.apart(usual.run, timeline.load(folder / REPEAT))
    return replace(usual, exact=sweep.repeats, apart=sweep.apart)


def judge_restart(
    usual: Usual,
    moment: Moment,
    place: pathlib.Path,
    seconds: float,
    beside: Forgotten = NONE_FORGOTTEN,
    files: bool = False,
) -> Tried:
    """`files`: whether what it forgot beside the state is a finding."""
    again = timeline.load(place)
    compare = resume_comparison.on_other_ranks if moment.elsewhere else resume_comparison.differences
    compared = compare(usual, again, moment)
    found = [*compared.found, *(Finding(Kind.FILES, each) for each in beside.words if files)]
    steps = len(np.intersect1d(again.steps.step, usual.run.steps.step))
    ended = _ended(usual.run, moment, again, steps)
    return Tried(moment, place.name, tuple(found), steps, seconds, compared.values, ended, beside)


def _ended(run: Timeline, moment: Moment, again: Timeline, steps: int) -> str:
    """What is wrong with how it ended; an empty text: nothing. The harness interrupts it once enough is known."""
    last, told = run.reached_step, int(again.steps.step.max(initial=0))
    reached = max(told, moment.step)
    if again.outcome in ("failed", "aborted", None) or (not steps and reached < last):
        return f"it {again.outcome or 'was cut off'}: {again.outcome_reason}"
    if again.outcome == "completed" and reached < last:
        return f"it ended after step {reached}, and the run after step {last}"
    return f"it went on to step {told}, and the run ended after step {last}" if told > last else ""


def judge_sweep(sweep: Sweep, folder: pathlib.Path) -> Sweep:
    """Again, from the event logs alone. What was forgotten beside the state stands in no log, and stays as it was."""
    usual = usual_of(folder, sweep)
    if (folder / REPEAT).is_dir():
        usual = repeated(usual, sweep, folder)
    tried = [
        judge_restart(usual, each.moment, folder / RESUMED / each.folder, each.seconds, each.beside, sweep.files)
        for each in sweep.tried
    ]
    return replace(sweep, tried=tried, of_saves=resume_comparison.same_tensors(usual.run))
