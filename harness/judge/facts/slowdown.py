"""How slow the job was beside its fault-free runs: while a fault that did not stop it was at work, and afterwards.

*Degraded:* from when to when a fault slowed the job, and how much.

*Pace:* the time of all undisturbed steps after the last recovery over what the same steps took in the fault-free run,
at the same world size: pauses count, and so do its own. Beside it the median step, which a pause in the fault-free run
does not move. A busy host slows a healthy job, too: so it is told as well what pace the run had before the first fault,
what its best stretch was, and what the worst one of the fault-free runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from harness.judge.facts import by_time
from harness.judge.facts.by_time import Window
from harness.judge.facts.usual import FAST_BEFORE, SMOOTHED_STEPS, STEPS_BEFORE, StepTime, medians, step_times
from harness.timeline.timeline import Bools, FaultRecord, Floats, Ints, Timeline

LONE_FACTOR = 3  # a step is slow by itself when it takes so many times the band
UNMEASURABLE = "cannot be measured against the fault-free runs"
STEPS_MIN = 10  # undisturbed ones, after the recovery; also the length of a stretch
PAUSES_STEPS_MIN = 15  # before the first fault: fewer do not show what pauses the host makes, and none count later
WORST_FACTOR = 2  # so many times the bound a quarter of the steps may take: else the job lost its pace for a while
NORMAL_95 = 1.645  # standard deviations, one-sided
NORMAL_97 = 1.96  # of the mean: pauses are few and long, and scatter more than what is normal
SLOWDOWN_MAX = 1.5  # where the scenario says nothing else


@dataclass(frozen=True)
class Degraded:
    """A fault slowed the job from `begin` until `end`; `recovered`: steps were back in the band then."""

    fault: str
    begin: int
    end: int
    recovered: bool
    factor: float  # mean step time meanwhile over the usual one
    before: float | None = None  # the same, median, just before, if the job was out of the band already


@dataclass(frozen=True)
class Pace:
    """All but the first three in multiples of the fault-free pace."""

    steps: int
    taken: int  # ns, by these steps
    usual: int  # ns, by the same steps of the fault-free run
    median: float  # step after the last recovery
    at_least: float  # the lower end of what the mean or the median may be, with 95 % confidence: few steps say little
    best: float  # mean of the fastest quarter of these steps in a row
    slowest: float  # the same as `at_least`, of the slowest quarter; or the mean of all but the longest step
    before: float  # mean or median before the first fault; 1 where too little came before
    worst: float  # slowest `STEPS_MIN` steps in a row without any fault, in this run and in the fault-free ones
    known: bool  # a fault-free run had this world size
    others: float = 0.0  # of the host's CPUs, 0 to 1: what more others took in these steps than without any fault

    @property
    def slowdown(self) -> float:
        return self.taken / self.usual

    def allowed(self, bound: float) -> float:
        return bound * max(1.0, self.before)

    def is_slow(self, bound: float) -> bool:
        return self.at_least > self.allowed(bound)

    def was_slow(self, bound: float) -> bool:
        """Fast enough on the whole, but not all the time."""
        return not self.is_slow(bound) and self.slowest > WORST_FACTOR * self.allowed(bound)

    def was_faster(self, bound: float) -> bool:
        """As fast as the fault-free run, but not as this run was before its first fault."""
        slower = self.median > WORST_FACTOR * bound * self.before
        return not self.is_slow(bound) and self.before < FAST_BEFORE and slower


@dataclass(frozen=True)
class _Steps:
    """Those that follow a step of their epoch, in order of time, beside what such a step usually takes; `relative` is
    not a number, and the other two are 0, where no fault-free run had that world size."""

    begin: Ints
    end: Ints
    relative: Floats  # time taken, of the usual one
    upper: Floats  # of the band, the same way
    steady: Floats

    def of(self, rows: Bools) -> _Steps:
        return _Steps(*(getattr(self, each.name)[rows] for each in fields(self)))


def _beside(timeline: Timeline, usual: Mapping[int, StepTime]) -> _Steps:
    rows, times = step_times(timeline)
    sizes, place = np.unique(timeline.progress.world_size[rows], return_inverse=True)
    known = [usual.get(size, StepTime(0, 0, 0, 0)) for size in sizes.tolist()]
    told = np.array([(each.usual or np.nan, each.upper, each.steady) for each in known], np.float64).reshape(-1, 3)
    typical, upper, steady = told[place.reshape(-1)].T
    begin = timeline.progress.end[rows - 1]
    return _Steps(begin, begin + times, times / typical, upper / typical, steady / typical)


def degraded(timeline: Timeline, usual: Mapping[int, StepTime]) -> list[Degraded]:
    """Faults that did not stop the job, as far as they slowed it measurably: from the injection to the last slow step
    before the fault was healed, and to those that follow closely; also across an episode of another fault, whose own
    time has no steps in it."""
    steps = _beside(timeline, usual)
    steps = steps.of(steps.steady > 0)
    is_slow = _slow(steps)
    slow = np.flatnonzero(is_slow)
    closely = np.append(np.flatnonzero(np.diff(slow) > SMOOTHED_STEPS), len(slow) - 1)  # the last one of each bout
    taken = np.append(0, np.cumsum(steps.relative))
    named = {name for episode in timeline.episodes for name in episode.faults}
    struck = [fault for fault in timeline.faults if fault.injected is not None]
    quiet = [fault for fault in struck if not (fault.id in named and (fault.kills or fault.stops))]
    found = []
    for fault, first, stop in zip(quiet, *_during(timeline, steps, quiet), strict=True):
        at = int(np.searchsorted(slow, stop)) - 1
        if at < 0 or slow[at] < first or fault.injected is None:
            continue
        last = int(slow[closely[np.searchsorted(closely, at)]])
        prior = slice(max(0, first - STEPS_BEFORE), first)
        found_slow = first >= SMOOTHED_STEPS and is_slow[prior].mean() > 0.5
        before = float(np.median(steps.relative[prior])) if found_slow else None
        factor = float(taken[last + 1] - taken[first]) / (last + 1 - first)
        over = last < len(steps.end) - 1
        found.append(Degraded(fault.id, fault.injected, int(steps.end[last]), over, factor, before))
    return found


def _during(timeline: Timeline, steps: _Steps, faults: Sequence[FaultRecord]) -> tuple[list[int], list[int]]:
    """Per fault that struck: the first step that ended after it, and the first one that began after it was healed."""
    injected = np.array([fault.injected for fault in faults], np.int64)
    healed = np.array([timeline.end if fault.healed is None else fault.healed for fault in faults], np.int64)
    return np.searchsorted(steps.end, injected, "right").tolist(), np.searchsorted(steps.begin, healed).tolist()


def _slow(steps: _Steps) -> Bools:
    if not len(steps.end):
        return np.zeros(0, np.bool_)
    around = medians(steps.relative, SMOOTHED_STEPS)
    both = (around > steps.upper) & (steps.relative > steps.upper)
    return np.asarray(both | (steps.relative > LONE_FACTOR * steps.upper), np.bool_)


def unmeasurable_slowdowns(
    timeline: Timeline, usual: Mapping[int, StepTime], degraded: Sequence[Degraded]
) -> list[FaultRecord]:
    """Faults that stopped nothing, and of which cannot be told whether they slowed the job: no step from then on (of
    those at work with the fault, if there are any) was done by as many ranks as some fault-free run has; or most were
    slower than steps in a row ever were without it, and a pause in the fault-free runs has widened the band so much
    that they are in it; or the job was so much faster before the fault that steps might be twice as slow within it."""
    steps = _beside(timeline, usual)
    known = np.append(0, np.cumsum(steps.steady > 0))
    slower = np.append(0, np.cumsum(steps.relative > steps.steady))
    named = {name for episode in timeline.episodes for name in episode.faults}
    slow = {interval.fault for interval in degraded}
    asked = [
        fault
        for fault in timeline.faults
        if not (fault.injected is None or fault.kills or fault.id in slow or (fault.stops and fault.id in named))
    ]
    found = []
    for fault, first, stop in zip(asked, *_during(timeline, steps, asked), strict=True):
        last = stop if stop > first else len(steps.end)
        many = known[last] - known[first]
        mostly = stop > first and many >= SMOOTHED_STEPS and 2 * (slower[last] - slower[first]) > many
        if not many or mostly or _found_fast(steps, first):
            found.append(fault)
    return found


def of_another_pace(timeline: Timeline, usual: Mapping[int, StepTime]) -> bool:
    """Whether a fault that stops nothing found the job much slower or faster than its fault-free runs: they were made
    on a busier or a quieter host, and do not tell how fast it should be."""
    steps = _beside(timeline, usual)
    gentle = [fault for fault in timeline.faults if fault.injected is not None and not fault.kills]
    return any(interval.before is not None for interval in degraded(timeline, usual)) or any(
        _found_fast(steps, first) for first in _during(timeline, steps, gentle)[0]
    )


def _found_fast(steps: _Steps, first: int) -> bool:
    prior = steps.relative[max(0, first - STEPS_BEFORE) : first]
    return len(prior) >= SMOOTHED_STEPS and bool(np.median(prior) < FAST_BEFORE)


@dataclass(frozen=True)
class _Times:
    """Per step of `progress` that follows one of its epoch: time per step, and when."""

    step: Ints
    size: Ints
    begin: Ints
    end: Ints
    taken: Floats


def pace(run: Timeline, fault_free_runs: Sequence[Timeline], disturbed: Sequence[Window]) -> Pace | str:
    """The pace after the last recovery, or why it is not judged."""
    mine = _times(run)
    if not disturbed:
        return "nothing disturbed the job"
    peace = by_time.quiet(mine.begin, mine.end, disturbed)
    after = _last_stretch(mine, peace, disturbed[0][0])
    if after is None:
        return f"fewer than {STEPS_MIN} undisturbed steps came after the recovery"
    references = [_times(other) for other in fault_free_runs]
    size = int(mine.size[after][0])
    known = [reference for reference in references if (reference.size == size).any()]
    steps = _same_steps(mine, after, known or references, size if known else None)
    if len(steps.taken) < STEPS_MIN or not steps.usual.any():
        return "no fault-free run shows how long these steps take"
    before = np.flatnonzero(peace & (mine.end <= disturbed[0][0]))
    prior = _same_steps(mine, before, references, None)
    pauses = len(prior.taken) >= PAUSES_STEPS_MIN
    return Pace(
        steps=len(steps.taken),
        taken=round(steps.taken.sum()),
        usual=round(steps.usual.sum()),
        median=float(np.median(steps.ratios)),
        at_least=_at_least(steps, pauses),
        best=float(_quarters(steps.taken, steps.typical).min()),
        slowest=max(_at_least(_slowest(steps), pauses), _mean(steps) if pauses else 0.0),
        before=max(float(np.median(prior.ratios)), _mean(prior)) if len(prior.taken) >= STEPS_MIN else 1.0,
        worst=_worst(prior.ratios, known or references),
        known=bool(known),
        others=_others(run, fault_free_runs, mine, after, disturbed[0][0]),
    )


def _others(run: Timeline, fault_free_runs: Sequence[Timeline], mine: _Times, after: Ints, struck: int) -> float:
    """The mean share of others in these steps, less the highest one before the first fault or in a fault-free run."""
    usual = [_load(run, run.begin, struck), *(_load(other, other.begin, other.end) for other in fault_free_runs)]
    return max(0.0, _load(run, int(mine.begin[after][0]), int(mine.end[after][-1])) - max(usual))


def _load(run: Timeline, begin: int, end: int) -> float:
    shares = [each["others"] for each in run.host_load if begin <= each["at"] <= end]
    return float(np.mean(shares)) if shares else 0.0


def _times(run: Timeline) -> _Times:
    """A trainer may tell only some of its steps: the time from one to the next is shared among them."""
    progress = run.progress
    rows = np.flatnonzero((np.diff(progress.epoch) == 0) & (np.diff(progress.step) > 0)) + 1
    begin, end = progress.end[rows - 1], progress.end[rows]
    taken = (end - begin) / (progress.step[rows] - progress.step[rows - 1])
    return _Times(progress.step[rows], progress.world_size[rows], begin, end, taken)


def _last_stretch(times: _Times, peace: np.ndarray[Any, Any], since: int) -> Ints | None:
    """Rows of the last undisturbed stretch of one world size after `since` that is long enough."""
    same = np.concatenate([[False], np.diff(times.size) == 0]) if len(times.size) else peace
    for part in reversed(by_time.stretches(peace & (times.begin >= since))):
        breaks = np.flatnonzero(~same[part])
        first = part.start + (int(breaks[-1]) if len(breaks) else 0) + by_time.SETTLING_STEPS
        if part.stop - first >= STEPS_MIN:
            return np.arange(first, part.stop)
    return None


@dataclass(frozen=True)
class _Same:
    """Steps of a run beside the same ones of the slowest of some fault-free runs."""

    taken: Floats
    usual: Floats  # that step there, its pauses included
    typical: Floats  # the median of the steps around it there: one pause makes nobody fast

    @property
    def ratios(self) -> Floats:
        return self.taken / self.typical

    def of(self, rows: Bools | slice) -> _Same:
        return _Same(*(getattr(self, each.name)[rows] for each in fields(self)))


def _same_steps(times: _Times, rows: Ints, references: list[_Times], size: int | None) -> _Same:
    """Those of the rows that some reference tells. `size` `None`: the slowest world size counts."""
    usual, typical = np.zeros(len(rows)), np.zeros(len(rows))
    for reference in references:
        for world in np.unique(reference.size).tolist() if size is None else [size]:
            theirs = np.flatnonzero(reference.size == world)
            if len(theirs) < STEPS_MIN:
                continue
            order = theirs[np.argsort(reference.step[theirs], kind="stable")]
            step, taken = reference.step[order], reference.taken[order]
            at = np.minimum(np.searchsorted(step, times.step[rows]), len(step) - 1)
            around = medians(taken, STEPS_MIN)[at]
            slower = (step[at] == times.step[rows]) & (around > typical)
            usual, typical = np.where(slower, taken[at], usual), np.where(slower, around, typical)
    return _Same(times.taken[rows], usual, typical).of(typical > 0)


def _at_least(steps: _Same, pauses: bool) -> float:
    """Below this the median lies with a chance of 5 % (an order statistic; the binomial taken as normal), and the mean
    with 2.5 %. A pause alone makes no mean: it scatters too much."""
    n, usual = len(steps.taken), max(1.0, steps.usual.sum())  # a coarse clock may tell of no time at all
    ratio = steps.taken.sum() / usual
    scatter = np.std(steps.taken - ratio * steps.usual) * n / usual
    median = np.sort(steps.ratios)[max(0, int(n / 2 - NORMAL_95 * np.sqrt(n) / 2))]
    return float(max(median, ratio - NORMAL_97 * scatter / np.sqrt(n - 1) if pauses else 0))


def _mean(steps: _Same) -> float:
    """The longest step counts like the next one: a pause may be alone."""
    taken = np.minimum(steps.taken, np.sort(steps.taken)[-2])
    return float(taken.sum() / max(1.0, steps.usual.sum()))


def _slowest(steps: _Same) -> _Same:
    first = int(_quarters(steps.taken, steps.usual).argmax())
    return steps.of(slice(first, first + _quarter(len(steps.taken))))


def _quarters(taken: Floats, usual: Floats) -> Floats:
    """Time taken over the usual one, of each quarter of the steps in a row."""
    length = _quarter(len(taken))
    mine, theirs = (np.append(0.0, np.cumsum(each)) for each in (taken, usual))
    return np.asarray((mine[length:] - mine[:-length]) / np.maximum(theirs[length:] - theirs[:-length], 1))


def _quarter(steps: int) -> int:
    return max(STEPS_MIN, steps // 4)


def _worst(prior: Floats, references: list[_Times]) -> float:
    """The slowest stretch without a fault over the usual pace there."""
    told = [each for each in (prior, *(one.taken for one in references)) if len(each) >= STEPS_MIN]
    stretches = ((medians(each, STEPS_MIN, of_each=False).max(), np.median(each)) for each in told)
    return max([1.0, *(float(slowest / usual) for slowest, usual in stretches if usual > 0)])
