"""Looks up facts by time and place, for example when something disturbed the run, or which workers a node ran."""

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.timeline.lineage import Key
from harness.timeline.lookups import Located, Moments, grouped
from harness.timeline.sorted_events import key_of
from harness.timeline.timeline import Bools, FaultRecord, Ints, Timeline

Window = tuple[int, int]
Target = Mapping[str, Any]  # a fault's target: a node, or a rank on it


def healed_at(run: Timeline, fault: FaultRecord) -> int:
    return run.end if fault.healed is None else fault.healed


def disturbed(run: Timeline) -> list[Window]:
    """Returns the time windows in which a fault was active or the job was in an outage; overlapping windows are merged.
    An outage ends once the job does a new step."""
    found = [(episode.t_stop, episode.end) for episode in run.episodes]
    over = {name: episode.end for episode in run.episodes for name in episode.faults}  # the last episode counts
    for fault in run.faults:
        if fault.injected is not None:
            healed = healed_at(run, fault)
            end = over.get(fault.id, healed) if fault.kills else healed  # a fault that kills ends with its last outage
            found.append((fault.injected, max(fault.injected, end)))
    return union(found)


def union(windows: Iterable[Window]) -> list[Window]:
    merged: list[Window] = []
    for begin, end in sorted(windows):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def touches(windows: Sequence[Window], first: int, last: int) -> bool:
    """Returns True if one of the sorted, disjoint `windows` overlaps the time from `first` to `last`."""
    place = bisect.bisect_right(windows, last, key=lambda window: window[0])
    return place > 0 and windows[place - 1][1] >= first


def quiet(begin: Ints, end: Ints, disturbed: Sequence[Window]) -> Bools:
    """Marks the time spans, each from `begin[i]` to `end[i]`, that overlap none of the windows `disturbed`."""
    if not disturbed:
        return np.ones(len(begin), np.bool_)
    lows, highs = np.array(disturbed, np.int64).T
    nearest = np.searchsorted(highs, begin, side="right")  # the first window that ends after `begin`
    return np.asarray(np.append(lows, np.iinfo(np.int64).max)[nearest] >= end, np.bool_)


def stretches(rows: Bools) -> list[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], rows, [False]]).astype(np.int8)))
    return [slice(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


class Places:
    """Tells which nodes the job had at a given time, and which workers ran on these nodes."""

    def __init__(self, run: Timeline):
        self._slots = grouped((slot.key, slot) for slot in run.slots)
        self.kept = frozenset(slot.key for slot in run.slots if slot.kept)
        self.given = {node: slots[0].allocated for node, slots in self._slots.items()}  # when the job got each node
        self.last_begin = np.zeros(len(run.processes), np.int64)  # ns, last begin of a step by worker; 0: no step
        self.last_begin[run.steps.process] = run.steps.begin  # rows are in order of time: the last row of each counts
        lives = ((each, max(each.last_seen, each.exited or 0), row) for row, each in enumerate(run.processes))
        self._lives = Located((each.key, each.rank, each.started, end, row) for each, end, row in lives)
        exits = [(key_of(exit_), exit_) for exit_ in run.exits]
        # The first end of each node's command.
        self.ended: dict[Key, int] = {node: each["at"] for node, each in reversed(exits) if each["rank"] is None}
        told = grouped((node, (each["at"], each)) for node, each in exits)
        self._exits = {node: Moments(each) for node, each in told.items()}

    def had(self, node: Key, moment: int) -> bool:
        return any(slot.allocated <= moment <= slot.released for slot in self._slots.get(node, ()))

    def alive(self, target: Target, moment: int) -> Iterator[int]:
        """Yields the indexes in `Timeline.processes` of a fault target's workers that lived at time `moment`."""
        return self._lives.at(key_of(target), target.get("rank"), moment)

    def exits(self, target: Target, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        node = key_of(target)
        return self._exits[node].within(first, last) if node in self._exits else iter(())
