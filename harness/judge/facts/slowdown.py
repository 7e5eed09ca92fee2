"""Faults that slow the job down without stopping it: from when to when, and how much slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.timeline.timeline import Bools, FaultRecord, Floats, Ints, Timeline

QUANTILE = 0.99
SMOOTHED_STEPS = 5  # a step counts as slow when the median of so many around it is out of the band
LONE_FACTOR = 3  # ... or when it alone takes so many times the band
STEPS_BEFORE = 20  # most of so many before a fault struck were slow: then it found the job so
UNMEASURABLE = "cannot be measured against the fault-free runs"
FAST_BEFORE = 2 / 3  # of the usual time was their median: then the band is too wide for this job


@dataclass(frozen=True)
class StepTime:
    """Fault-free time from one complete step to the next at one world size, from `steps` steps."""

    usual: int
    upper: int
    steps: int
    steady: int  # the longest that the median of so many steps in a row took; one pause does not widen it


@dataclass(frozen=True)
class Degraded:
    """A fault slowed the job from `begin` until `end`; `recovered`: steps were back in the band then."""

    fault: str
    begin: int
    end: int
    recovered: bool
    factor: float  # mean step time meanwhile over the usual one
    before: float | None = None  # the same, median, just before, if the job was out of the band already

    @property
    def doubt(self) -> str:
        """Why nothing follows from how slow it was, or an empty text."""
        if self.before is None:
            return ""
        text = f"the job was {self.before:.2f} times slower than its fault-free runs before {self.fault} struck"
        return f"{text}: its usual speed is not known (the host may have been busy)"


def step_times(timeline: Timeline) -> tuple[Ints, Ints]:
    """Rows of `progress` that follow a step of the same epoch, and the time since that step's end."""
    progress = timeline.progress
    rows = np.flatnonzero(np.diff(progress.epoch) == 0) + 1
    return rows, progress.end[rows] - progress.end[rows - 1]


def usual_step_times(baselines: Sequence[Timeline]) -> dict[int, StepTime]:
    """Per world size, from fault-free runs; not of those whose clock is too coarse to tell a step's length."""
    found: dict[int, list[Ints]] = {}
    for timeline in baselines:
        rows, times = step_times(timeline)
        size = timeline.progress.world_size[rows]
        for world in np.unique(size).tolist():
            found.setdefault(world, []).append(times[size == world])
    all_worlds = {world: _step_time(parts) for world, parts in found.items()}
    return {world: time for world, time in all_worlds.items() if time.usual}


def _step_time(runs: Sequence[Ints]) -> StepTime:
    times = np.concatenate(runs)
    upper = int(np.quantile(times, QUANTILE, method="higher"))
    steady = max((int(_smoothed(each).max()) for each in runs if len(each) >= SMOOTHED_STEPS), default=upper)
    return StepTime(int(np.median(times)), upper, len(times), steady)


def degraded(timeline: Timeline, usual: Mapping[int, StepTime]) -> list[Degraded]:
    """Faults that did not stop the job, as far as they slowed it measurably."""
    rows, times = step_times(timeline)
    sizes = timeline.progress.world_size[rows]
    known = np.isin(sizes, list(usual))
    rows, times, sizes = rows[known], times[known], sizes[known]
    relative = times / np.array([usual[size].usual for size in sizes.tolist()]) if len(rows) else np.zeros(0)
    upper = np.array([usual[size].upper / usual[size].usual for size in sizes.tolist()])
    slow = _slow(relative, upper)
    begin, end = timeline.progress.end[rows - 1], timeline.progress.end[rows]
    named = {name for episode in timeline.episodes for name in episode.faults}
    struck = [fault for fault in timeline.faults if fault.injected is not None]
    quiet = [fault for fault in struck if not (fault.id in named and (fault.kills or fault.stops))]
    found = (_one(timeline, fault, begin, end, relative, slow) for fault in quiet)
    return [interval for interval in found if interval is not None]


def unmeasurable_slowdowns(
    timeline: Timeline, usual: Mapping[int, StepTime], degraded: Sequence[Degraded]
) -> list[FaultRecord]:
    """Faults that stopped nothing, and of which cannot be told whether they slowed the job: no step from then on (of
    those at work with the fault, if there are any) was done by as many ranks as some fault-free run has; or they were
    slower than steps in a row ever were without it, and a pause in the fault-free runs has widened the band so much
    that they are in it; or the job was so much faster before the fault that steps might be twice as slow within it."""
    rows, times = step_times(timeline)
    end, size = timeline.progress.end[rows], timeline.progress.world_size[rows]
    steady = np.array([usual[ranks].steady if ranks in usual else 0 for ranks in size.tolist()], np.int64)
    relative = _relative(times, size, usual)
    named = {name for episode in timeline.episodes for name in episode.faults}
    slow = {interval.fault for interval in degraded}
    found = []
    for fault in timeline.faults:
        if fault.injected is None or fault.kills or fault.id in slow or (fault.stops and fault.id in named):
            continue
        after = end > fault.injected
        during = after & (end - times < (timeline.end if fault.healed is None else fault.healed))
        mine = np.flatnonzero((during if during.any() else after) & (steady > 0))
        many = during.any() and len(mine) >= SMOOTHED_STEPS
        if not len(mine) or _found_fast(relative, end, fault) or (many and np.median(times[mine] - steady[mine]) > 0):
            found.append(fault)
    return found


def of_another_pace(timeline: Timeline, usual: Mapping[int, StepTime]) -> bool:
    """Whether a fault that stops nothing found the job much slower or faster than its fault-free runs: they were made
    on a busier or a quieter host, and do not tell how fast it should be."""
    rows, times = step_times(timeline)
    relative = _relative(times, timeline.progress.world_size[rows], usual)
    gentle = [fault for fault in timeline.faults if fault.injected is not None and not fault.kills]
    return any(interval.before is not None for interval in degraded(timeline, usual)) or any(
        _found_fast(relative, timeline.progress.end[rows], fault) for fault in gentle
    )


def _relative(times: Ints, sizes: Ints, usual: Mapping[int, StepTime]) -> Floats:
    """Of the usual time at that world size; not a number where no fault-free run had it."""
    return np.asarray(times / np.array([usual[size].usual if size in usual else np.nan for size in sizes.tolist()]))


def _found_fast(relative: Floats, end: Ints, fault: FaultRecord) -> bool:
    assert fault.injected is not None
    prior = relative[end <= fault.injected][-STEPS_BEFORE:]
    return len(prior) >= SMOOTHED_STEPS and bool(np.median(prior) < FAST_BEFORE)


def _smoothed(times: npt.NDArray[Any]) -> Floats:
    """The median of each so many neighbours, at least one of which is there."""
    half = SMOOTHED_STEPS // 2
    padded = np.pad(times, half, mode="edge")
    found: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED_STEPS), axis=1)
    return found


def _slow(relative: Floats, upper: Floats) -> Bools:
    if not len(relative):
        return np.zeros(0, np.bool_)
    return np.asarray(((_smoothed(relative) > upper) & (relative > upper)) | (relative > LONE_FACTOR * upper), np.bool_)


def _one(
    timeline: Timeline, fault: FaultRecord, begin: Ints, end: Ints, relative: Floats, slow: Bools
) -> Degraded | None:
    """From the injection to the last slow step before the fault was healed, and to those that follow closely; also
    across an episode of another fault, whose own time has no steps in it."""
    assert fault.injected is not None
    healed = timeline.end if fault.healed is None else fault.healed
    mine = np.flatnonzero(end > fault.injected)
    during = mine[slow[mine] & (begin[mine] < healed)]
    if not len(during):
        return None
    last = int(during[-1])
    while (near := np.flatnonzero(slow[last + 1 : min(last + SMOOTHED_STEPS, mine[-1]) + 1])).size:
        last += int(near[-1]) + 1
    taken = relative[mine[mine <= last]]
    prior = np.flatnonzero(end <= fault.injected)[-STEPS_BEFORE:]
    found_slow = len(prior) >= SMOOTHED_STEPS and slow[prior].mean() > 0.5
    before = float(np.median(relative[prior])) if found_slow else None
    return Degraded(fault.id, fault.injected, int(end[last]), bool(last < mine[-1]), float(taken.mean()), before)
