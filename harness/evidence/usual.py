"""Measures how long steps usually take in the fault-free runs, and how much slower the judged run was.

*Degraded* is a time interval in which a fault slowed the job without stopping it. *Pace* is the time of all undisturbed
steps after the last recovery, pauses included, divided by the time of the same steps in the fault-free run at the same
world size. The pace of the median step is measured, too, because pauses in the fault-free run do not change a median.
As a busy host slows a healthy job, too, the pace is also measured before the first fault, for the fastest steps, and
for the slowest steps without a fault.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from harness.evidence import by_time
from harness.evidence.by_time import Window
from harness.evidence.logs import CHANGED
from harness.judge import thresholds as limits
from harness.timeline.lookups import NEVER, grouped
from harness.timeline.save_events import STARTED
from harness.timeline.sorted_events import acted_at, first_strike
from harness.timeline.timeline import Bools, FaultRecord, Floats, Ints, Timeline
from harness.units import format_duration

UNMEASURABLE = "cannot be measured against the fault-free runs"


@dataclass(frozen=True)
class Times:
    """The durations of all steps that follow another step without a restart in between, in order of time. If a trainer
    logs only some steps, the time between two logged steps is divided equally among the steps in between."""

    step: Ints
    after: Ints  # the previous logged step
    size: Ints  # of the world
    begin: Ints  # the end of the previous logged step
    end: Ints
    taken: Floats
    saved: Bools  # True if a save began in this interval, or ended if the log has no begins

    @classmethod
    def of(cls, run: Timeline) -> Self:
        progress = run.progress
        rows = np.flatnonzero((np.diff(progress.epoch) == 0) & (np.diff(progress.step) > 0)) + 1
        step, after = progress.step[rows], progress.step[rows - 1]
        begin, end = progress.end[rows - 1], progress.end[rows]
        begun = [event["at"] for event in run.checkpoints if event["event"] == STARTED]
        saves = np.sort(np.array(begun or [event["at"] for event in run.checkpoints], np.int64))
        saved = np.searchsorted(saves, end) > np.searchsorted(saves, begin)
        return cls(step, after, progress.world_size[rows], begin, end, (end - begin) / (step - after), saved)


@dataclass(frozen=True)
class StepTime:
    """How long a step takes, in ns, in fault-free runs at one world size."""

    usual: int
    upper: int
    steady: int  # longest running median, which a single pause does not raise


@dataclass(frozen=True)
class Band:
    """The longest usual duration of a step in fault-free runs, in ns, without waits for data and checkpoints."""

    upper: int
    first: int  # limit for the first step of a process, which warms up
    steps: int  # how many were measured
    runs: int = 1


class Usual:
    """How long steps usually take, by the fault-free runs `runs`. For a world size (number of ranks) that no fault-free
    run has, the step time is taken from the judged job's steps before any fault. With step times from the judged job
    itself, only a standstill can be found, because the steps before any fault are few."""

    def __init__(self, runs: Sequence[Timeline], own: Timeline | None = None):
        self.runs, self._own = runs, None if own is None else own.beside.job or own
        self.times = [Times.of(run) for run in runs]

    def longest(self, measured: Callable[[Timeline], int | None]) -> int | None:
        return max((taken for run in self.runs if (taken := measured(run)) is not None), default=None)

    @cached_property
    def steps(self) -> dict[int, StepTime]:
        """Maps world sizes to usual step times. A world size is left out if its steps are too short for the clock."""
        sizes = ((times, size) for times in self.times for size in np.unique(times.size).tolist())
        by_size = grouped((size, times.taken[times.size == size]) for times, size in sizes)
        found: dict[int, StepTime] = {}
        for size, runs in by_size.items():
            taken = np.concatenate(runs)
            smooth = [medians(each, limits.SMOOTHED_STEPS) for each in runs if len(each) >= limits.SMOOTHED_STEPS]
            steady = max((int(each.max()) for each in smooth), default=_upper(taken))
            found[size] = StepTime(int(np.median(taken)), _upper(taken), steady)
        return {size: time for size, time in found.items() if time.usual}

    @cached_property
    def bands(self) -> dict[int, Band]:
        """Maps world sizes to the longest usual time of a step, and of a process's first step, which is slower."""
        by_size: dict[int, list[tuple[Ints, Ints]]] = {}
        for run in self.runs:
            steps, first = run.steps, first_rows(run)
            sizes = np.array([epoch.size for epoch in run.epochs] or [0], np.int64)[steps.epoch]
            working = np.maximum(steps.end - steps.begin - steps.data_ns - steps.checkpoint_ns, 0)
            for size in np.unique(sizes).tolist():
                mine = sizes == size
                by_size.setdefault(size, []).append((working[mine & ~first], working[mine & first]))
        found: dict[int, Band] = {}
        for size, runs in by_size.items():
            later, firsts = (np.concatenate(parts) for parts in zip(*runs, strict=True))
            told = later if len(later) else firsts
            found[size] = Band(_upper(told), max(_upper(told), int(firsts.max(initial=0))), len(told), len(runs))
        return found

    @cached_property
    def own_steps(self) -> dict[int, StepTime]:
        """Maps each world size that no fault-free run has to the usual time of the job's steps before any fault."""
        if self._own is None or first_strike(self._own.faults) == NEVER:
            return {}
        times, found = Times.of(self._own), {}
        before = times.end <= first_strike(self._own.faults)
        for size in {*times.size[before].tolist()}.difference(*(told.size.tolist() for told in self.times)):
            taken = times.taken[before & (times.size == size)]
            if len(taken) >= limits.OWN_STEPS_MIN and (usual := int(np.median(taken))):
                found[size] = StepTime(usual, _upper(taken), 0)
        return found

    @cached_property
    def sync(self) -> float | None:
        """Returns the longest usual duration of a gradient sync in ns, in fault-free runs of any world size."""
        times = np.concatenate([np.zeros(0), *(run.steps.sync_ns[run.steps.sync_ns > 0] for run in self.runs)])
        return float(np.quantile(times, limits.SYNC_QUANTILE)) if len(times) else None


def first_rows(run: Timeline) -> Bools:
    (order, begins), found = run.rows_by_process, np.zeros(len(run.steps), np.bool_)
    found[order[begins[:-1][np.diff(begins) > 0]]] = True
    return found


def _upper(times: npt.NDArray[Any]) -> int:
    return int(np.quantile(times, limits.QUANTILE, method="higher"))


def medians(values: npt.NDArray[Any], window: int, of_each: bool = True) -> Floats:
    """Returns the moving medians over `window` values. By default, there are as many medians as values."""
    if of_each:
        values = np.pad(values, (window // 2, window - 1 - window // 2), mode="edge")
    found: Floats = np.median(np.lib.stride_tricks.sliding_window_view(values, window), axis=1)
    return found


@dataclass(frozen=True)
class Degraded:
    """A time interval in which a fault slowed the job."""

    fault: str
    begin: int
    end: int
    recovered: bool  # steps followed after `end`, and were as fast as usual
    factor: float  # mean step time in the interval, divided by the usual step time
    before: float | None = None  # the same for the median step before the fault, if the job was already slow
    own: bool = False  # compared with the job's own steps, because no fault-free run has this world size


def standstill_ns(run: Timeline, interval: Degraded) -> int:
    """Returns the longest time, in ns, between the ends of two consecutive steps in the interval `interval`."""
    first, last = np.searchsorted(run.progress.end, [interval.begin, interval.end], "right")
    return int(np.diff(run.progress.end[max(0, first - 1) : last]).max(initial=0))


@dataclass(frozen=True)
class _Relative:
    begin: Ints
    end: Ints
    taken: Floats  # in multiples of the usual time; NaN if no usual time is known
    upper: Floats  # upper limit of the band, in the same unit
    steady: Floats  # 0 where the job's own steps give the usual time

    @classmethod
    def of(cls, run: Timeline, usual: Usual) -> Self:
        times, steps = Times.of(run), usual.own_steps | usual.steps
        sizes, place = np.unique(times.size, return_inverse=True)
        place = np.where(times.begin < run.work_changed_at, place.reshape(-1), -1)
        known = [*(steps.get(size, StepTime(0, 0, 0)) for size in sizes.tolist()), StepTime(0, 0, 0)]
        told = np.array([(each.usual or np.nan, each.upper, each.steady) for each in known], np.float64)
        typical, upper, steady = told[place].T
        return cls(times.begin, times.end, times.taken / typical, upper / typical, steady / typical)

    def known(self) -> Self:
        rows = self.upper > 0
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    def slow(self) -> Bools:
        if not len(self.end):
            return np.zeros(0, np.bool_)
        both = (medians(self.taken, limits.SMOOTHED_STEPS) > self.upper) & (self.taken > self.upper) & (self.steady > 0)
        return np.asarray(both | (self.taken > limits.LONE_FACTOR * self.upper), np.bool_)

    def found_fast(self, first: int) -> bool:
        prior = self.taken[max(0, first - limits.STEPS_BEFORE) : first]
        return len(prior) >= limits.SMOOTHED_STEPS and bool(np.median(prior) < limits.FAST_BEFORE)

    def stayed_fast(self, first: int, stop: int) -> bool:
        after = self.taken[first : stop + limits.STEPS_BEFORE]
        if stop - first > limits.STEPS_BEFORE or len(after) < stop - first + limits.SMOOTHED_STEPS:
            return False
        before = np.median(self.taken[max(0, first - limits.STEPS_BEFORE) : first])
        return bool(limits.FAST_BEFORE * medians(after, limits.SMOOTHED_STEPS, of_each=False).max() <= before)


class Slowed:
    def __init__(self, run: Timeline, usual: Usual):
        self._run = run
        self._steps = _Relative.of(run, usual)
        self._struck = [fault for fault in run.faults if fault.injected is not None]
        self._named = {name for episode in run.episodes for name in episode.faults}

    @cached_property
    def degraded(self) -> list[Degraded]:
        """Returns time intervals in which a fault slowed the job without stopping it. An interval lasts from the
        fault's injection to the last slow step before the fault was undone, plus the slow steps that closely follow.
        Faults that caused an outage are left out."""
        steps = self._steps.known()
        is_slow = steps.slow()
        slow = np.flatnonzero(is_slow)
        ends = np.append(np.flatnonzero(np.diff(slow) > limits.SMOOTHED_STEPS), len(slow) - 1)  # last step of each bout
        taken = np.append(0, np.cumsum(steps.taken))
        asked = [fault for fault in self._struck if not (fault.id in self._named and (fault.kills or fault.stops))]
        found = []
        for fault, first, stop in self._during(steps, asked):
            at = int(np.searchsorted(slow, stop)) - 1
            if at < 0 or slow[at] < first:
                continue
            last = int(slow[ends[np.searchsorted(ends, at)]])
            prior = slice(max(0, first - limits.STEPS_BEFORE), first)
            found_slow = first >= limits.SMOOTHED_STEPS and is_slow[prior].mean() > 0.5
            before = float(np.median(steps.taken[prior])) if found_slow else None
            factor = float(taken[last + 1] - taken[first]) / (last + 1 - first)
            over, own = last < len(steps.end) - 1, not steps.steady[last]
            found.append(Degraded(fault.id, acted_at(fault), int(steps.end[last]), over, factor, before, own))
        return found

    @property
    def measured(self) -> list[Degraded]:
        """Returns the slow intervals that show a fault's whole effect. If the usual step time comes from the job's own
        few steps, returns only intervals of faults that can stop a job."""
        stopping = {fault.id for fault in self._struck if fault.stops}
        return [interval for interval in self.degraded if not interval.own or interval.fault in stopping]

    @cached_property
    def unmeasurable(self) -> list[FaultRecord]:
        """Returns faults that stopped nothing and whose slowdown cannot be measured. A slowdown cannot be measured if
        no fault-free run has the job's world size. A slowdown is uncertain if most steps took longer than any moving
        median of the fault-free runs, but not long enough to count as slow. A slowdown can be hidden if the job was
        much faster than usual before the fault, and did not clearly stay fast."""
        steps = self._steps
        known = np.append(0, np.cumsum(steps.steady > 0))
        slower = np.append(0, np.cumsum((steps.taken > steps.steady) & (steps.steady > 0)))
        told = {interval.fault for interval in self.measured}
        gentle = [fault for fault in self._struck if not fault.kills and fault.id not in told]
        # A fault that only damages files at rest slows nothing.
        asked = [fault for fault in gentle if not (fault.id in self._named if fault.stops else fault.damages)]
        found = []
        for fault, first, stop in self._during(steps, asked):
            last = stop if stop > first else len(steps.end)
            many = known[last] - known[first]
            mostly = stop > first and many >= limits.SMOOTHED_STEPS and 2 * (slower[last] - slower[first]) > many
            hidden = steps.found_fast(first) and not steps.stayed_fast(first, stop)
            if not many or mostly or hidden:
                found.append(fault)
        return found

    @property
    def another_pace(self) -> bool:
        """Returns True if the job was much slower or faster than usual before a fault that does not kill."""
        gentle = self._during(self._steps, [fault for fault in self._struck if not fault.kills])
        found_slow = any(interval.before is not None for interval in self.degraded)
        return found_slow or any(self._steps.found_fast(first) for _, first, _ in gentle)

    def _during(self, steps: _Relative, faults: Sequence[FaultRecord]) -> Iterable[tuple[FaultRecord, int, int]]:
        first = np.searchsorted(steps.end, np.array([fault.injected for fault in faults], np.int64), "right")
        healed = np.array([by_time.healed_at(self._run, fault) for fault in faults], np.int64)
        return zip(faults, first.tolist(), np.searchsorted(steps.begin, healed).tolist(), strict=True)


def frozen(run: Timeline) -> list[Window]:
    """Returns the time windows in which faults froze processes, as measured by the harness."""
    struck = (each for each in run.faults if each.freezes and each.injected is not None)
    held = (each for each in struck if any(effect.get("ok") for effect in each.effects))
    return by_time.union((acted_at(each), by_time.healed_at(run, each)) for each in held)


def stood_frozen(run: Timeline) -> list[Window]:
    """Returns the time windows in which processes were frozen, each extended to the end of the interrupted steps."""
    begin, end = run.steps.begin, run.steps.end
    return [(since, int(end[(begin < until) & (end > until)].max(initial=until))) for since, until in frozen(run)]


# Pace


class Slow(enum.Enum):
    NO = "fast enough"
    ON_THE_WHOLE = "slower than the fault-free run"
    IN_THE_END = "fast enough on the whole, but a quarter of the steps was not, nor was the last one"
    BESIDE_BEFORE = "as fast as the fault-free run, but not as this run was before its first fault"
    IN_THE_END_BESIDE_BEFORE = "the same of a quarter of the steps, and of the last one"


@dataclass(frozen=True)
class Pace:
    """The pace of the job after the last recovery: its step time, divided by the step time of the fault-free run."""

    steps: int
    taken: int  # ns, for these steps
    usual: int  # ns, for the same steps in the fault-free run
    median: float  # median step after the last recovery
    at_least: float  # lower bound of mean or median, with 95 % confidence
    best: float  # mean of the fastest consecutive quarter of the steps
    slowest: float  # `at_least` of the slowest quarter, or the mean without the longest step if larger
    last: float  # `at_least` of the last quarter, or half of the same mean; a busy host's slow stretch is over then
    before: float  # mean or median before the first fault, whichever is larger; 1 if too few steps came before
    worst: float  # slowest `STEPS_MIN` consecutive steps without a fault, in this run or a fault-free one
    known: bool  # True if a fault-free run had this world size
    others: float = 0.0  # extra share of the host's CPUs (0 to 1) that other programs used during these steps
    usual_taken: bool = False  # True if other programs used most of the host during a fault-free run

    @property
    def slowdown(self) -> float:
        return self.taken / self.usual

    @property
    def told(self) -> str:
        took, usual = format_duration(self.taken), format_duration(self.usual)
        after = f"{self.steps} steps after the recovery took {took}"
        return f"{after}, {self.slowdown:.2f} × the {usual} of the fault-free run"

    def allowed(self, bound: float) -> float:
        return bound * max(1.0, self.before)

    def slow(self, bound: float) -> Slow:
        """Compares this pace with the slowest allowed pace `bound`. If the run was much faster than the fault-free run
        before the first fault, the pace before the first fault gives a second limit."""
        usual = (1 if self.usual_taken else limits.WORST_FACTOR) * bound * self.before
        before = usual if self.before < limits.FAST_BEFORE else float("inf")
        if self.at_least > self.allowed(bound):
            return Slow.ON_THE_WHOLE
        if self.median > before:
            return Slow.BESIDE_BEFORE
        if self.slowest > limits.WORST_FACTOR * self.allowed(bound) and self.last > self.allowed(bound):
            return Slow.IN_THE_END
        return Slow.IN_THE_END_BESIDE_BEFORE if min(self.slowest, self.last) > before else Slow.NO


def pace(run: Timeline, usual: Usual, disturbed: Sequence[Window]) -> Pace | str:
    """Returns the pace after the last recovery, or the reason why this pace is not judged."""
    if not disturbed or run.work_changed_at < NEVER:
        return CHANGED if disturbed else "nothing disturbed the job"
    mine, struck = Times.of(run), disturbed[0][0]
    peace = by_time.quiet(mine.begin, mine.end, disturbed)
    after = _last_stretch(mine, peace, struck)
    if after is None:
        return f"fewer than {limits.STEPS_MIN} undisturbed steps came after the recovery"
    size = int(mine.size[after][0])
    known = [times for times in usual.times if (times.size == size).any()]
    steps = _same_steps(mine, after, known or usual.times, size if known else None)
    if len(steps.taken) < limits.STEPS_MIN or not steps.usual.any():
        return "no fault-free run shows how long these steps take"
    prior = _same_steps(mine, np.flatnonzero(peace & (mine.end <= struck)), usual.times, None)
    pauses = len(prior.taken) >= limits.PAUSES_STEPS_MIN
    loads = [others_share(other, other.begin, other.end) for other in usual.runs]
    others = others_share(run, int(mine.begin[after][0]), int(mine.end[after][-1]))
    return Pace(
        steps=len(steps.taken),
        taken=round(steps.taken.sum()),
        usual=round(steps.usual.sum()),
        median=float(np.median(steps.ratios)),
        at_least=steps.at_least(pauses),
        best=float(steps.quarters(steps.typical).min()),
        slowest=max(steps.slowest().at_least(pauses), steps.mean(pauses)),
        last=max(steps.of(slice(-steps.quarter, None)).at_least(pauses), steps.mean(pauses) / limits.WORST_FACTOR),
        before=max(float(np.median(prior.ratios)), prior.mean()) if len(prior.taken) >= limits.STEPS_MIN else 1.0,
        worst=_worst(prior.ratios, known or usual.times),
        known=bool(known),
        others=max(0.0, others - max([others_share(run, run.begin, struck), *loads])),
        usual_taken=max(loads, default=0.0) > limits.OTHERS_MOST,
    )


def others_share(run: Timeline, begin: int, end: int) -> float:
    """Returns the mean share (0 to 1) of the host's CPUs that programs outside the job used from `begin` to `end`."""
    shares = [each["others"] for each in run.host_load if begin <= each["at"] <= end]
    return float(np.mean(shares)) if shares else 0.0


def _last_stretch(times: Times, peace: Bools, since: int) -> Ints | None:
    same = np.concatenate([[False], np.diff(times.size) == 0]) if len(times.size) else peace
    for part in reversed(by_time.stretches(peace & (times.begin >= since))):
        breaks = np.flatnonzero(~same[part])
        first = part.start + (int(breaks[-1]) if len(breaks) else 0) + limits.SETTLING_STEPS
        if part.stop - first >= limits.STEPS_MIN:
            return np.arange(first, part.stop)
    return None


@dataclass(frozen=True)
class _Same:
    """The times of some steps of a run, each with the time of the same step in a fault-free run. Of several fault-free
    runs, the run that is slowest near this step counts."""

    taken: Floats
    usual: Floats  # the fault-free time of the same step, with pauses
    typical: Floats  # fault-free median around the same step, so a pause does not count
    saved: Bools

    def of(self, rows: Bools | slice) -> Self:
        return type(self)(*(getattr(self, each.name)[rows] for each in fields(self)))

    @property
    def ratios(self) -> Floats:
        return self.taken / self.typical

    @property
    def _in_all(self) -> float:
        return float(max(1.0, self.usual.sum()))  # a coarse clock may measure 0 ns

    def mean(self, pauses: bool = True) -> float:
        """Returns the mean pace. The longest step counts as long as the second longest, so that a single pause is
        ignored."""
        return float(pauses and np.minimum(self.taken, np.sort(self.taken)[-2]).sum() / self._in_all)

    def at_least(self, pauses: bool) -> float:
        """Returns a lower confidence bound of the pace: the larger of a bound of the median (5 % chance of an error, an
        order statistic in normal approximation) and a bound of the mean (2.5 %). A single pause raises the variance of
        the step times, and so lowers the bound of the mean. Pauses at each checkpoint and steadily growing step times
        do not raise the variance."""
        n = len(self.taken)
        ratio = self.taken.sum() / self._in_all
        apart = self.taken - ratio * self.usual
        kinds = [apart[self.saved], apart[~self.saved]]
        variance = min(n * np.var(apart, ddof=1), n * _scatter(apart))
        if min(map(len, kinds)) >= limits.SAVES_MIN:
            variance = min(variance, sum(len(kind) * _scatter(kind) for kind in kinds))
        median = np.sort(self.ratios)[int(n / 2 - limits.NORMAL_95 * np.sqrt(n) / 2)]
        return float(max(median, ratio - limits.NORMAL_97 * np.sqrt(variance) / self._in_all if pauses else 0))

    def quarters(self, beside: Floats) -> Floats:
        length = self.quarter
        mine, theirs = (np.append(0.0, np.cumsum(each)) for each in (self.taken, beside))
        return np.asarray((mine[length:] - mine[:-length]) / np.maximum(theirs[length:] - theirs[:-length], 1))

    def slowest(self) -> Self:
        first = int(self.quarters(self.usual).argmax())
        return self.of(slice(first, first + self.quarter))

    @property
    def quarter(self) -> int:
        return max(limits.STEPS_MIN, len(self.taken) // 4)


def _scatter(kind: Floats) -> float:
    """Returns the smaller of two variance estimates: the sample variance, or von Neumann's mean square successive
    difference (https://doi.org/10.1214/aoms/1177731677). With few values, the variance estimate is enlarged, because it
    is less certain."""
    n = len(kind)
    variance = min(np.var(kind, ddof=1), np.square(np.diff(kind)).mean() / 2)
    return float(variance * (n + 1) / (n - 2))


def _same_steps(times: Times, rows: Ints, references: Sequence[Times], size: int | None) -> _Same:
    usual, typical = np.zeros(len(rows)), np.zeros(len(rows))
    for reference in references:
        for world in np.unique(reference.size).tolist() if size is None else [size]:
            theirs = np.flatnonzero(reference.size == world)
            if len(theirs) < limits.STEPS_MIN:
                continue
            order = theirs[np.argsort(reference.step[theirs], kind="stable")]
            step, taken = reference.step[order], reference.taken[order]
            at = np.minimum(np.searchsorted(step, times.step[rows]), len(step) - 1)
            around = medians(taken, limits.STEPS_MIN)[at]
            slower = (step[at] == times.step[rows]) & (around > typical)
            usual, typical = np.where(slower, taken[at], usual), np.where(slower, around, typical)
    return _Same(times.taken[rows], usual, typical, times.saved[rows]).of(typical > 0)


def _worst(prior: Floats, references: Sequence[Times]) -> float:
    told = [each for each in (prior, *(one.taken for one in references)) if len(each) >= limits.STEPS_MIN]
    stretches = ((medians(each, limits.STEPS_MIN, of_each=False).max(), np.median(each)) for each in told)
    return max([1.0, *(float(slowest / usual) for slowest, usual in stretches if usual > 0)])


def exit_ns(run: Timeline) -> int | None:
    """Returns the time in ns from a completed job's last step or disturbance until its last node command ended. Returns
    `None` if the job did not complete, or if a disturbance lasted longer."""
    if not len(run.progress) or run.outcome != "completed":
        return None
    last = int(run.progress.end[-1])
    ended = max((exit_["at"] for exit_ in run.exits if exit_["rank"] is None), default=-1)
    over = max((end for begin, end in by_time.disturbed(run) if begin <= ended), default=last)
    return ended - max(last, over) if max(last, over) <= ended else None
