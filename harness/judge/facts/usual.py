"""What things usually take, from the fault-free runs: a step and its working part, per world size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.timeline.timeline import Bools, Floats, Ints, Steps, Timeline

QUANTILE = 0.99  # of the fault-free ones took no longer: the band
SYNC_QUANTILE = 0.95
SMOOTHED_STEPS = 5  # a step is held against the median of so many around it
STEPS_BEFORE = 20  # so many before something show how fast the job was until then
FAST_BEFORE = 2 / 3  # of the usual time was their median: then what is usual says nothing of this job


@dataclass(frozen=True)
class StepTime:
    """Fault-free time from one complete step to the next at one world size, from `steps` steps."""

    usual: int
    upper: int
    steps: int
    steady: int  # the longest that the median of so many steps in a row took; one pause does not widen it


@dataclass(frozen=True)
class Band:
    """What the working part of a step (without data wait and checkpoint stall) takes at most without a fault.

    `first` is for the first step of a process, which warms up; `steps` and `runs` are from how many it was taken.
    """

    upper: int
    first: int
    steps: int
    runs: int = 1


def step_times(timeline: Timeline) -> tuple[Ints, Ints]:
    """Rows of `progress` that follow a step of the same epoch, and the time since that step's end."""
    progress = timeline.progress
    rows = np.flatnonzero(np.diff(progress.epoch) == 0) + 1
    return rows, progress.end[rows] - progress.end[rows - 1]


def usual_step_times(fault_free_runs: Sequence[Timeline]) -> dict[int, StepTime]:
    """Per world size; not of those whose clock is too coarse to tell a step's length."""
    found: dict[int, list[Ints]] = {}
    for timeline in fault_free_runs:
        rows, times = step_times(timeline)
        for world, mine in _by_size(timeline.progress.world_size[rows]):
            found.setdefault(world, []).append(times[mine])
    all_worlds = {world: _step_time(parts) for world, parts in found.items()}
    return {world: time for world, time in all_worlds.items() if time.usual}


def _step_time(runs: Sequence[Ints]) -> StepTime:
    times = np.concatenate(runs)
    steady = [int(medians(each, SMOOTHED_STEPS).max()) for each in runs if len(each) >= SMOOTHED_STEPS]
    return StepTime(int(np.median(times)), _upper(times), len(times), max(steady, default=_upper(times)))


def bands(fault_free_runs: Sequence[Timeline]) -> dict[int, Band]:
    """Per world size the working part of a step, the first step of a process apart."""
    found: dict[int, list[tuple[Ints, Ints]]] = {}
    for timeline in fault_free_runs:
        steps, first = timeline.steps, first_rows(timeline.steps)
        sizes = np.array([epoch.size for epoch in timeline.epochs] or [0], np.int64)
        length = np.asarray(np.maximum(steps.end - steps.begin - steps.data_ns - steps.checkpoint_ns, 0), np.int64)
        for world, mine in _by_size(sizes[steps.epoch] if timeline.epochs else sizes[:0]):
            found.setdefault(world, []).append((length[mine & ~first], length[mine & first]))
    return {world: _band(parts) for world, parts in found.items()}


def _band(runs: Sequence[tuple[Ints, Ints]]) -> Band:
    working, firsts = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    usual = working if len(working) else firsts
    return Band(_upper(usual), max(_upper(usual), int(firsts.max(initial=0))), len(usual), len(runs))


def sync_upper(fault_free_runs: Sequence[Timeline]) -> float | None:
    """How long a gradient sync takes at most, at whatever world size."""
    found = [run.steps.sync_ns[run.steps.sync_ns > 0] for run in fault_free_runs]
    times = np.concatenate(found) if found else np.zeros(0)
    return float(np.quantile(times, SYNC_QUANTILE)) if len(times) else None


def first_rows(steps: Steps) -> Bools:
    """Which rows are the first step of their process."""
    found = np.zeros(len(steps), np.bool_)
    first = np.full(int(steps.process.max()) + 1 if len(steps) else 0, -1)
    first[steps.process[::-1]] = np.arange(len(steps))[::-1]  # the last one to write wins
    found[first[first >= 0]] = True
    return found


def _by_size(sizes: Ints) -> Iterator[tuple[int, Bools]]:
    """Each world size, and which rows have it."""
    return ((world, sizes == world) for world in np.unique(sizes).tolist())


def _upper(times: Ints) -> int:
    return int(np.quantile(times, QUANTILE, method="higher"))


def medians(values: npt.NDArray[Any], window: int, of_each: bool = True) -> Floats:
    """The median of each `window` values in a row; `of_each`: of those around each value, at the ends repeated."""
    if of_each:
        values = np.pad(values, (window // 2, window - 1 - window // 2), mode="edge")
    found: Floats = np.median(np.lib.stride_tricks.sliding_window_view(values, window), axis=1)
    return found
