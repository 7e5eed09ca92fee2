"""When a run was undisturbed: outside faults at work, outside outages, and not within some steps after either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from harness.timeline.timeline import Bools, FaultRecord, Ints, Timeline

SETTLING_STEPS = 3  # after a fault or an outage: caches are cold, a backlog is worked off
Window = tuple[int, int]


def windows(run: Timeline) -> list[Window]:
    """Outages and faults at work, merged, in order of time."""
    found = [(episode.t_stop, episode.end) for episode in run.episodes]
    over = {name: episode.end for episode in run.episodes for name in episode.faults}  # the last one counts
    found += [window for fault in run.faults if (window := _at_work(run, fault, over.get(fault.id))) is not None]
    return union(found)


def union(windows: Iterable[Window]) -> list[Window]:
    """The same time, in windows that are apart, in order."""
    merged: list[Window] = []
    for begin, end in sorted(windows):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _at_work(run: Timeline, fault: FaultRecord, over: int | None) -> Window | None:
    """From the injection until it was healed; one that kills is over with the outages it is named in."""
    if fault.injected is None:
        return None
    if fault.kills and over is not None:
        return fault.injected, max(fault.injected, over)
    return fault.injected, run.end if fault.healed is None else max(fault.injected, fault.healed)


def quiet(begin: Ints, end: Ints, disturbed: Sequence[Window]) -> Bools:
    """Which of the intervals [begin, end) touch no window."""
    if not disturbed:
        return np.ones(len(begin), np.bool_)
    lows, highs = np.array(disturbed, np.int64).T
    nearest = np.searchsorted(highs, begin, side="right")  # the first window that is not over yet
    return np.asarray(np.append(lows, np.iinfo(np.int64).max)[nearest] >= end, np.bool_)


def stretches(rows: Bools) -> list[slice]:
    """The runs of rows that are `True`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], rows, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
