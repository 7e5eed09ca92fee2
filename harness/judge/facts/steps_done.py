"""Steps that ranks did or did not do, beside what others of their world did and what was planned.

A trainer may tell each step, every fifth, or each on one rank and fewer on the others: how far apart two steps are
that a rank tells one after the other is taken from the fault-free run, where there is one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.judge.facts import ranks
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.deaths import listed
from harness.judge.facts.known import By
from harness.judge.facts.reported import usual_strides
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Epoch, Ints, Stretch, Timeline

UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE = 10, 0.05  # more of a run's steps than in the fault-free run are too many


@dataclass(frozen=True)
class NeverDone:
    """Steps that no surviving epoch did, though later ones were done."""

    steps: Ints
    by: By = By.SEEN


@dataclass(frozen=True)
class LeftOut:
    """Ranks that did not do steps that count, which others of their world did: in the middle, or by coming late.
    `lines`: so many lines of each process are not there."""

    ranks: Sequence[int]
    size: int
    first: int
    last: int
    processes: tuple[int, ...]
    lines: int
    by: By = By.SEEN


@dataclass(frozen=True)
class WentAhead:
    """Ranks that went on without the others. `undone`: nothing that counts hangs on it."""

    ranks: Sequence[int]
    size: int
    last: int
    others: int
    absent: tuple[int, ...]
    since: int
    undone: bool
    by: By = By.SEEN


@dataclass(frozen=True)
class OtherSize:
    """A process that tells another size of its group than the group has."""

    rank: int
    step: int
    told: int
    size: int
    by: By = By.TOLD


@dataclass(frozen=True)
class DidNone:
    """Ranks of a group that did none of the steps that count, though they have logs."""

    absent: int
    size: int
    first: int
    last: int
    by: By = By.MISSING


@dataclass(frozen=True)
class Beyond:
    """A step beyond the plan, or beyond the last one of the fault-free run where nothing else plans steps."""

    last: int
    planned: int
    as_fault_free: bool
    by: By


@dataclass(frozen=True)
class ApartUpdates:
    """A rank that left the update of a step out, and others did not."""

    step: int
    rank: int
    by: By = By.TOLD


@dataclass(frozen=True)
class ManyLeftOut:
    """More steps left their update out than a loss scale explains. `usual`: in the fault-free run."""

    steps: int
    first: int
    usual: int
    by: By = By.TOLD


@dataclass(frozen=True)
class OtherUpdate:
    """A rank told otherwise than in the fault-free run whether it applied an update. That changes what follows, and yet
    all losses are the same."""

    step: int
    rank: int
    applied: bool
    by: By = By.TOLD


def of_ranks(ranks: Sequence[int], size: int) -> str:
    """`rank 1 (of 2)`, `ranks 0 and 2 (of 4)`."""
    return f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])} (of {size})"


def never_done(evidence: Analysis) -> Iterator[NeverDone]:
    if len(evidence.missing):
        yield NeverDone(evidence.missing)


def went_ahead(run: Timeline) -> Iterator[WentAhead]:
    """Where a fault took the others meanwhile, and what came after was undone, nothing hangs on it."""
    steps, count = run.steps, len(run.epochs)
    last = np.array([epoch.first - 1 for epoch in run.epochs], np.int64)
    np.maximum.at(last, run.progress.epoch, run.progress.step)
    rows = np.flatnonzero(steps.step > last[steps.epoch] + 1) if count else np.zeros(0, np.int64)
    begun = np.zeros(count, np.int64)
    np.maximum.at(begun, steps.epoch[rows], steps.begin[rows])
    seen = grouped((each.epoch, each.process) for each in run.stretches if each.last > last[each.epoch])
    rows = rows[np.argsort(steps.epoch[rows], kind="stable")]
    for mine in np.split(rows, np.flatnonzero(np.diff(steps.epoch[rows])) + 1) if len(rows) else ():
        number = int(steps.epoch[mine[0]])
        epoch, end = run.epochs[number], int(last[number])
        absent = tuple(sorted(set(epoch.processes) - set(seen[number])))
        ahead = np.unique(steps.rank[mine]).tolist()
        yield WentAhead(ahead, epoch.size, epoch.last, end, absent, int(begun[number]), epoch.kept <= end)


def left_out(evidence: Analysis) -> Iterator[LeftOut]:
    run, told, strides = evidence.run, evidence.curve.step, usual_strides(evidence.run, evidence.fault_free)
    found: dict[tuple[int, int, int], list[int]] = {}
    for each in run.stretches:
        process, epoch = run.processes[each.process], run.epochs[each.epoch]
        stride = strides.get(process.rank)
        for first, last in _holes(each, epoch, stride) if stride else ():
            last = min(last, epoch.kept)
            if np.searchsorted(told, last, "right") > np.searchsorted(told, first):  # else nobody told them
                found.setdefault((each.epoch, first, last), []).append(each.process)
    for (number, first, last), rows in found.items():
        absent = sorted({run.processes[row].rank for row in rows})
        lines = max(1, (last - first + 1) // max(strides[rank] for rank in absent))
        yield LeftOut(absent, run.epochs[number].size, first, last, tuple(rows), lines)


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


def in_parts(run: Timeline, fault_free: Timeline | None) -> Iterator[OtherSize | DidNone]:
    """Groups that are not one. Where it is the same without a fault, that is this trainer's way of telling."""
    if fault_free is not None and not any(True for _ in _parts(fault_free)):
        yield from itertools.islice(_parts(run), 1)


def _parts(run: Timeline) -> Iterator[OtherSize | DidNone]:
    stayed = Counter(each.process for each in run.stretches)
    for each in run.stretches:
        process, epoch = run.processes[each.process], run.epochs[each.epoch]
        if stayed[each.process] == 1 and process.world_size != epoch.size:
            yield OtherSize(process.rank, each.first, process.world_size, epoch.size)
    for epoch in run.epochs:
        absent = epoch.size - len(epoch.processes) - epoch.unheard
        if absent > 0 and epoch.kept - epoch.first >= epoch.size and not run.lost:
            yield DidNone(absent, epoch.size, epoch.first, epoch.kept)


def beyond_the_plan(evidence: Analysis) -> Iterator[Beyond]:
    """Where the scenario plans no steps, those of the fault-free run stand in the plan. A job that ends early by what
    it computed may end elsewhere, unless it computed the same."""
    run, fault_free, compared = evidence.run, evidence.fault_free, evidence.comparison
    planned = run.planned_steps
    usual = 0 if fault_free is None else fault_free.steps.step.max(initial=0)
    last = int(run.steps.step.max(initial=0))
    if planned is None or usual > planned or last <= planned:
        return
    as_fault_free = fault_free is not None and fault_free.planned_steps is None
    sure = not as_fault_free or (compared is not None and compared.identical)
    yield Beyond(last, planned, as_fault_free, By.SEEN if sure else By.TOLD)


def updates_left_out(run: Timeline, fault_free: Timeline | None) -> Iterator[ApartUpdates | ManyLeftOut]:
    """A few are left out over a loss scale, on every rank alike, as in the fault-free run."""
    steps = run.steps
    rows = np.flatnonzero(steps.survives & (steps.applied == 0))
    if not len(rows):
        return
    applied = np.flatnonzero(steps.survives & (steps.applied == 1))
    apart = np.intersect1d(steps.step[rows], steps.step[applied])
    if len(apart):
        yield ApartUpdates(int(apart[0]), int(steps.rank[rows[steps.step[rows] == apart[0]]].min()))
    done = len(np.unique(steps.step[steps.survives]))
    usual = 0 if fault_free is None else len(np.unique(fault_free.steps.step[fault_free.steps.applied == 0]))
    mine = len(np.unique(steps.step[rows]))
    if mine - usual > max(UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE * done):
        yield ManyLeftOut(mine, int(steps.step[rows].min()), usual)


def other_updates(evidence: Analysis) -> Iterator[OtherUpdate]:
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or not comparison.identical:
        return
    rows, same = ranks.beside(run.steps, fault_free.steps, "applied", int(comparison.step[-1]) - 1)
    for row in rows[~same][:1].tolist():
        yield OtherUpdate(int(run.steps.step[row]), int(run.steps.rank[row]), bool(run.steps.applied[row]))
