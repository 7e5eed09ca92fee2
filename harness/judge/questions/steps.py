"""Did every rank do every step that counts? Judged in every run, whatever the scenario expects.

A trainer may tell each step, every fifth, or each on one rank and fewer on the others: how far apart two steps are
that a rank tells one after the other is taken from the fault-free run, where there is one. What a log cannot tell is
not held against anybody: the last lines of a process that a fault took, lines that a full disk is known to have
dropped, a log that is known to be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from harness.judge.codes import Code, Doubt
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.losses import MISSING_MAX
from harness.judge.facts.observable import blindness
from harness.judge.facts.tells import usual_strides
from harness.judge.score import Bounds, Finding, Score, ScoreResult, Verdict
from harness.timeline.timeline import Epoch, Ints, Stretch, Timeline
from harness.units import counted

NAMED_STEPS = 5
UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE = 10, 0.05  # more of a run's steps than in the fault-free run are too many


class StepsDone(Score):
    name = "steps"
    order = 1
    asked, by_steps = False, False

    def score(self, evidence: Analysis, bounds: Bounds | None) -> ScoreResult:
        blind = blindness(evidence.run, evidence.fault_free)
        return ScoreResult({}, reasons=[] if blind else list(_claims(evidence)))


def _claims(evidence: Analysis) -> Iterator[Finding]:
    run, fault_free = evidence.run, evidence.fault_free
    strides = usual_strides(run, fault_free)
    yield from _went_ahead(run)
    yield from _not_applied(run, fault_free)
    yield from _left_out(run, evidence.curve.step, strides)
    yield from _missing(run, evidence.missing)
    yield from _beyond_the_plan(run, fault_free)
    yield from _unheard(run, fault_free)


def _not_applied(run: Timeline, fault_free: Timeline | None) -> Iterator[Finding]:
    """Updates that were left out: a few over a loss scale, on every rank alike, as in the fault-free run."""
    steps = run.steps
    rows = np.flatnonzero(steps.survives & (steps.applied == 0))
    if not len(rows):
        return
    applied = np.flatnonzero(steps.survives & (steps.applied == 1))
    apart = np.intersect1d(steps.step[rows], steps.step[applied])
    if len(apart):
        ranks = sorted(set(steps.rank[rows[steps.step[rows] == apart[0]]].tolist()))
        text = f"at step {apart[0]} rank {ranks[0]} left its update out, and others did not"
        yield Finding(Verdict.INCONCLUSIVE, f"{text}: their weights differ", Code.STEP_APART_UPDATES)
    done = len(np.unique(steps.step[steps.survives]))
    usual = 0 if fault_free is None else len(np.unique(fault_free.steps.step[fault_free.steps.applied == 0]))
    left_out = len(np.unique(steps.step[rows]))
    if left_out - usual > max(UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE * done):
        text = f"{counted(left_out, 'step')} left their update out, first step {steps.step[rows].min()}"
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"{text}; the fault-free run {usual}: not all that was counted was done",
            Code.STEP_UPDATES_LEFT_OUT,
        )


def _missing(run: Timeline, missing: Ints) -> Iterator[Finding]:
    """Steps that no surviving epoch did. One step at the seam of a kill may only have lost its last event."""
    if not len(missing):
        return
    seams = {int(epoch.first) - 1 for epoch in run.epochs if epoch.kept >= 0}
    if run.dropped:
        text = f"{named(missing)}: no event in the log; {run.dropped} events were lost to a full disk"
        yield Finding(Verdict.INCONCLUSIVE, text, Code.STEP_MISSING, Doubt.LINES_DROPPED)
    elif all(step in seams and step - 1 not in missing for step in missing.tolist()):
        yield Finding(
            Verdict.INCONCLUSIVE,
            f"{named(missing)}: its event was lost when its workers died",
            Code.STEP_MISSING,
            Doubt.TORN_TAIL,
        )
    else:
        yield Finding(
            Verdict.FAIL,
            f"{named(missing)}: never done in the surviving history, though later steps were",
            Code.STEP_MISSING,
        )


def named(numbers: Ints) -> str:
    shown = ", ".join(str(number) for number in numbers[:NAMED_STEPS].tolist())
    more = ", …" if len(numbers) > NAMED_STEPS else ""
    many = " or more" if len(numbers) >= MISSING_MAX else ""
    return f"steps {shown}{more} ({len(numbers)}{many})" if len(numbers) > 1 else f"step {shown}"


def _went_ahead(run: Timeline) -> Iterator[Finding]:
    """Ranks that went on without the others."""
    steps = run.steps
    for number, epoch in enumerate(run.epochs):
        complete = run.progress.step[run.progress.epoch == number]
        last = int(complete.max()) if len(complete) else epoch.first - 1
        rows = (steps.epoch == number) & (steps.step > last + 1)
        if not rows.any():
            continue
        if _lost_their_last_lines(run, number, last, int(steps.begin[rows].max())):
            if epoch.kept > last:
                text = f"it is not known whether all ranks did step {last + 1}: the log of a killed rank"
                yield Finding(Verdict.INCONCLUSIVE, f"{text} ends before it", Code.STEP_WENT_AHEAD, Doubt.TORN_TAIL)
            continue
        ahead = np.unique(steps.rank[rows]).tolist()
        text = f"ranks {ahead} of {epoch.size} went on to step {epoch.last} alone; the others stopped at step {last}"
        yield Finding(
            Verdict.INCONCLUSIVE if run.dropped else Verdict.FAIL,
            text,
            Code.STEP_WENT_AHEAD,
            Doubt.LINES_DROPPED if run.dropped else "",
        )


def _lost_their_last_lines(run: Timeline, number: int, last: int, begun: int) -> bool:
    """Whether all who are not seen after step `last` were alive when the others began what came after, and were then
    taken by a fault: what they did in the meantime was told and never reached the log."""
    seen = {each.process for each in run.stretches if each.epoch == number and each.last > last}
    absent = set(run.epochs[number].processes) - seen
    return bool(absent) and all(begun <= taken_at(run, row) + run.uncertainty_ns for row in absent)


def taken_at(run: Timeline, row: int) -> int:
    """When a fault that kills took this process; -1: none did."""
    process = run.processes[row]
    places = [(process.node, process.incarnation, rank) for rank in (None, process.rank)]
    strikes = (
        at
        for fault in run.faults
        if fault.kills and any((t.get("node"), t.get("incarnation", 1), t.get("rank")) in places for t in fault.targets)
        for at in fault.strikes
        if at >= process.started
    )
    return min(strikes, default=-1)


def _left_out(run: Timeline, told: Ints, strides: Mapping[int, int]) -> Iterator[Finding]:
    """Ranks that did not do steps that count, which others of their world did: in the middle, or by coming late."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for each in run.stretches:
        process, epoch = run.processes[each.process], run.epochs[each.epoch]
        stride = strides.get(process.rank)
        for first, last in _holes(each, epoch, stride) if stride else ():
            last = min(last, epoch.kept)
            if np.searchsorted(told, last, "right") > np.searchsorted(told, first):  # else nobody told them
                found.setdefault((each.epoch, first, last), []).append(each.process)
    for (number, first, last), rows in found.items():
        lost = all(run.processes[row].dropped >= last - first + 1 for row in rows)
        which = f"step {first}" if first == last else f"steps {first} to {last}"
        ranks = sorted({run.processes[row].rank for row in rows})
        text = f"ranks {ranks} of {run.epochs[number].size} did not do {which}, but other ranks did"
        why = f"{text}; events were lost to a full disk"
        yield (
            Finding(Verdict.INCONCLUSIVE, why, Code.STEP_LEFT_OUT, Doubt.LINES_DROPPED)
            if lost
            else Finding(Verdict.FAIL, text, Code.STEP_LEFT_OUT)
        )


def _holes(each: Stretch, epoch: Epoch, stride: int) -> Iterator[tuple[int, int]]:
    """First and last of the steps that it left out."""
    begin = max(epoch.first - 1, -1 if each.before is None else each.before)
    if each.first > begin + stride and each.first > epoch.first + stride - 1:
        yield begin + 1, each.first - 1
    for before, after in each.jumps:
        if after - before > stride:
            yield before + 1, after - 1
    if each.stride > stride and each.rows > 1 and not each.jumps:
        yield each.first + 1, each.last - 1


def _beyond_the_plan(run: Timeline, fault_free: Timeline | None) -> Iterator[Finding]:
    planned = run.planned_steps
    usual = 0 if fault_free is None else fault_free.steps.step.max(initial=0)
    if planned is None or not len(run.steps) or usual > planned:
        return
    last = int(run.steps.step.max())
    if last > planned:
        were = "was" if planned == 1 else "were"
        yield Finding(
            Verdict.FAIL,
            f"step {last} was done, but only {counted(planned, 'step')} {were} planned",
            Code.STEP_BEYOND_PLAN,
        )


def _unheard(run: Timeline, fault_free: Timeline | None) -> Iterator[Finding]:
    """Ranks without a log. Where it is the same without a fault, they never have one: that is not judged."""
    if fault_free is not None and fault_free.epochs and all(epoch.unheard for epoch in fault_free.epochs):
        return
    for epoch in run.epochs:
        if epoch.unheard:
            text = f"{epoch.unheard} of {epoch.size} ranks left no log of steps {epoch.first} to {epoch.last}"
            yield Finding(Verdict.INCONCLUSIVE, f"{text}: what they did is not known", Code.STEP_UNHEARD)
            return


SCORES = (StepsDone(),)
