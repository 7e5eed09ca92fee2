"""Did every rank do every step that counts, when it says? Judged in every run, whatever the scenario expects.

A trainer may tell each step, every fifth, or each on one rank and fewer on the others: how far apart two steps are
that a rank tells one after the other is taken from the fault-free run, where there is one. What a log cannot tell is
not held against anybody: the last lines of a process that a fault took, lines that a full disk is known to have
dropped, a log that is known to be cut.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.judge.facts import ranks, times
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.deaths import listed
from harness.judge.facts.losses import MISSING_MAX
from harness.judge.facts.reported import blindness, usual_strides
from harness.judge.score import Score, ScoreResult
from harness.judge.verdict import UNTRUE, Claim, Code, Ground, Kind, failed, unknown
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Epoch, Ints, Stretch, Timeline
from harness.units import counted

NAMED_STEPS = 5
UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE = 10, 0.05  # more of a run's steps than in the fault-free run are too many


class StepsDone(Score):
    name = "steps"
    order = 1
    by_steps = False

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        return ScoreResult({}, reasons=[] if blindness(evidence.run, evidence.fault_free) else list(_claims(evidence)))


def _claims(evidence: Analysis) -> Iterator[Claim]:
    run, fault_free = evidence.run, evidence.fault_free
    impossible = list(times.impossible(run, evidence.fault_free_runs, evidence.disturbed, evidence.resumed.values()))
    yield from _went_ahead(run)
    yield from _left_out(run, evidence.curve.step, usual_strides(run, fault_free))
    yield from _missing(evidence.missing)
    yield from _beyond_the_plan(evidence)
    yield from (failed(Code.TIME_OUTSIDE_NODE, f"{each.words}: {UNTRUE}") for each in impossible if each.seen)
    yield from _not_applied(run, fault_free)
    yield from _applied_all_the_same(evidence)
    yield from _unheard(run, fault_free)
    yield from _in_parts(run, fault_free)
    yield from _other_data(run, fault_free)
    yield from (unknown(Code.TIME_IMPOSSIBLE, f"{each.words}: {UNTRUE}") for each in impossible if not each.seen)


def _not_applied(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """Updates that were left out: a few over a loss scale, on every rank alike, as in the fault-free run."""
    steps = run.steps
    rows = np.flatnonzero(steps.survives & (steps.applied == 0))
    if not len(rows):
        return
    applied = np.flatnonzero(steps.survives & (steps.applied == 1))
    apart = np.intersect1d(steps.step[rows], steps.step[applied])
    if len(apart):
        rank = int(steps.rank[rows[steps.step[rows] == apart[0]]].min())
        text = f"at step {apart[0]} rank {rank} left its update out, and others did not: their weights differ"
        yield unknown(Code.STEP_APART_UPDATES, text)
    done = len(np.unique(steps.step[steps.survives]))
    usual = 0 if fault_free is None else len(np.unique(fault_free.steps.step[fault_free.steps.applied == 0]))
    left_out = len(np.unique(steps.step[rows]))
    if left_out - usual > max(UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE * done):
        text = f"{counted(left_out, 'step')} left their update out, first step {steps.step[rows].min()}"
        why = f"the fault-free run {usual}: not all that was counted was done"
        yield unknown(Code.STEP_UPDATES_LEFT_OUT, f"{text}; {why}")


def _applied_all_the_same(evidence: Analysis) -> Iterator[Claim]:
    """An update that was left out changes what follows."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or not comparison.identical:
        return
    rows, same = ranks.beside(run.steps, fault_free.steps, "applied", int(comparison.step[-1]) - 1)
    for row in rows[~same][:1].tolist():
        who = f"at step {run.steps.step[row]} rank {run.steps.rank[row]}"
        what = "applied an update that the fault-free run left out"
        what = what if run.steps.applied[row] else "left its update out, and not in the fault-free run"
        yield unknown(Code.STEP_UPDATES_LEFT_OUT, f"{who} {what}, though all losses are the same")


def _missing(missing: Ints) -> Iterator[Claim]:
    """Steps that no surviving epoch did."""
    if len(missing):
        text = f"{named(missing)}: never done in the surviving history, though later steps were"
        yield failed(Code.STEP_MISSING, text, Ground(Kind.ABSENCE, steps=tuple(missing.tolist())))


def named(numbers: Ints) -> str:
    shown = ", ".join(str(number) for number in numbers[:NAMED_STEPS].tolist())
    more = ", …" if len(numbers) > NAMED_STEPS else ""
    many = " or more" if len(numbers) >= MISSING_MAX else ""
    return f"steps {shown}{more} ({len(numbers)}{many})" if len(numbers) > 1 else f"step {shown}"


def _went_ahead(run: Timeline) -> Iterator[Claim]:
    """Ranks that went on without the others. Where a fault took the others meanwhile, and what came after was undone,
    nothing hangs on it."""
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
        ranks = np.unique(steps.rank[mine]).tolist()
        text = f"{_of(ranks, epoch.size)} went on to step {epoch.last} alone; the others stopped at step {end}"
        grounds = [Ground(Kind.ABSENCE, since=int(begun[number]))]
        if absent:
            grounds.insert(0, Ground(Kind.ABSENCE, processes=absent, since=int(begun[number])))
        yield failed(Code.STEP_WENT_AHEAD, text, *grounds, idle=epoch.kept <= end)


def _of(ranks: Sequence[int], size: int) -> str:
    """`rank 1 (of 2)`, `ranks 0 and 2 (of 4)`."""
    return f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])} (of {size})"


def _left_out(run: Timeline, told: Ints, strides: Mapping[int, int]) -> Iterator[Claim]:
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
        which = f"step {first}" if first == last else f"steps {first} to {last}"
        ranks = sorted({run.processes[row].rank for row in rows})
        text = f"{_of(ranks, run.epochs[number].size)} did not do {which}, but other ranks did"
        lines = max(1, (last - first + 1) // max(strides[rank] for rank in ranks))
        ground = Ground(Kind.ABSENCE, tuple(rows), (first,) if first == last else (first, last), lines)
        yield failed(Code.STEP_LEFT_OUT, text, ground)


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


def _beyond_the_plan(evidence: Analysis) -> Iterator[Claim]:
    """Where the scenario plans no steps, those of the fault-free run stand in the plan. A job that ends early by what
    it computed may end elsewhere, unless it computed the same."""
    run, fault_free, compared = evidence.run, evidence.fault_free, evidence.comparison
    planned = run.planned_steps
    usual = 0 if fault_free is None else fault_free.steps.step.max(initial=0)
    if planned is None or not len(run.steps) or usual > planned:
        return
    last = int(run.steps.step.max())
    if last > planned and fault_free is not None and fault_free.planned_steps is None:
        text = f"the job went on to step {last}; its fault-free run ended after step {planned}"
        yield Claim(Code.STEP_BEYOND_PLAN, text, False if compared is not None and compared.identical else None)
    elif last > planned:
        were = "was" if planned == 1 else "were"
        yield failed(Code.STEP_BEYOND_PLAN, f"step {last} was done, but only {counted(planned, 'step')} {were} planned")


def _unheard(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """Ranks without a log. Where it is the same without a fault, they never have one: that is not judged."""
    if fault_free is not None and fault_free.epochs and all(epoch.unheard for epoch in fault_free.epochs):
        return
    for epoch in run.epochs:
        if epoch.unheard:
            text = f"{epoch.unheard} of {epoch.size} ranks left no log of steps {epoch.first} to {epoch.last}"
            yield unknown(Code.STEP_UNHEARD, f"{text}: what they did is not known")
            return


def _in_parts(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """Groups that are not one. Where it is the same without a fault, that is this trainer's way of telling."""
    if fault_free is not None and not any(True for _ in _parts(fault_free)):
        yield from itertools.islice(_parts(run), 1)


def _parts(run: Timeline) -> Iterator[Claim]:
    """Processes that tell another size of their group than it has; groups whose ranks did not all do the steps that
    count, though they have logs."""
    stayed = Counter(each.process for each in run.stretches)
    for each in run.stretches:
        process, epoch = run.processes[each.process], run.epochs[each.epoch]
        if stayed[each.process] == 1 and process.world_size != epoch.size:
            text = f"rank {process.rank} began step {each.first} in a group of {process.world_size}"
            yield unknown(Code.WORLD_IN_PARTS, f"{text}, and others did it in a group of {epoch.size}")
    for epoch in run.epochs:
        absent = epoch.size - len(epoch.processes) - epoch.unheard
        if absent > 0 and epoch.kept - epoch.first >= epoch.size and not run.lost:
            text = f"{absent} of {epoch.size} ranks did none of the steps {epoch.first} to {epoch.kept}"
            yield unknown(Code.WORLD_IN_PARTS, f"{text}, though they have logs: the group was not one")


def _other_data(run: Timeline, fault_free: Timeline | None) -> Iterator[Claim]:
    """The data has one size, in all processes and without a fault."""
    sizes = sorted({*run.data_sizes, *(fault_free.data_sizes if fault_free else ())})
    if len(sizes) > 1:
        told = ", ".join(f"{size:,}" for size in sizes[:NAMED_STEPS])
        yield unknown(Code.SAMPLES_OTHER_DATA, f"the number of samples in the data is not the same everywhere: {told}")


SCORES = (StepsDone(),)
