"""The ledger assigns each allocated GPU-nanosecond to one account, such as `productive`. All times are integers.

A slot is one GPU of one node. Time within steps is assigned by the activity of the slot's worker, such as a wait for
data. Time outside of steps is assigned by the phase of the whole job at that time, such as `restore`. The accounts of
each slot add up to the slot's allocated time, as the function `settle` asserts.
"""

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.evidence import by_time
from harness.evidence.by_time import Window
from harness.evidence.usual import Band, StepTime, first_rows, frozen
from harness.judge.thresholds import LONE_FACTOR
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Bools, Ints, Segment, Slot, Timeline

S = 1e9
ENDLESS = 2**60  # ns; limit of a step without a baseline, so that no time counts as drag
ACCOUNTS = (
    *("productive", "recompute", "straggler_drag", "checkpoint_stall", "data_wait", "detect", "drain", "teardown"),
    *("reschedule", "startup", "rendezvous", "restore", "idle", "unattributed"),
)
_INDEX = {name: index for index, name in enumerate(ACCOUNTS)}
_OF_STEPS = ("recompute", "data_wait", "checkpoint_stall", "straggler_drag", "productive")
# Account for a slot's time outside its steps, by phase of the job, if the slot has a worker in the current world.
_ACCOUNT_OF_PHASE = {phase: phase for phase in ACCOUNTS} | {
    "running": "unattributed",
    "recompute": "unattributed",
    "interrupted_step": "recompute",  # executed and lost
    "first_step": "startup",  # ready to step, but not yet stepping
    "finish": "teardown",
}


@dataclass(frozen=True)
class Ledger:
    """GPU-nanoseconds by account: of all allocated time (`accounts`), and of time lost by faults (`by_faults`)."""

    allocated: int
    accounts: Mapping[str, int]
    by_faults: Mapping[str, int]

    @property
    def wasted(self) -> int:
        return self.allocated - self.accounts["productive"]

    @property
    def wasted_by_faults(self) -> int:
        return sum(self.by_faults.values())


def settle(
    timeline: Timeline,
    baselines: Mapping[int, Band],
    windows: Sequence[Window],
    own_steps: Mapping[int, StepTime] | None = None,
) -> Ledger:
    """Assigns the time of all GPU slots to accounts. `windows` holds the outages and slow intervals that faults caused;
    `own_steps` holds step times at world sizes that no fault-free run has. A step counts to the time window in which
    the step ended. Time outside of steps is split at the edges of time windows. Raises `AssertionError` if a slot's
    accounts do not sum to its time."""
    windows = by_time.union(windows)
    segments = _split(timeline.segments, windows)
    of_faults = _inside(np.array([segment.end for segment in segments], np.int64), windows)
    shares = _StepShares(timeline, baselines, own_steps or {})
    rows_of, between = _rows_by_slot(timeline), _Between(timeline, segments)
    total = blamed = np.zeros(len(ACCOUNTS), object)  # objects, because the sum of all slots may exceed 64 bits
    for number, slot in enumerate(timeline.slots):
        ended, of_steps, free = shares.of(slot, rows_of[number])
        where, amounts = between.accounts(slot), _by_segment(*free, segments)
        booked = _booked(of_steps, where, amounts)
        assert booked.sum() == slot.released - slot.allocated, f"{slot}: {booked.sum()} ns booked"
        total = total + booked
        blamed = blamed + _booked(of_steps[:, _inside(ended, windows)], where[of_faults], amounts[of_faults])
    accounts, by_faults = (dict(zip(ACCOUNTS, map(int, each), strict=True)) for each in (total, blamed))
    return Ledger(sum(total), accounts, by_faults | {"productive": 0, "recompute": accounts["recompute"]})


def _booked(of_steps: Ints, accounts: Ints, amounts: Ints) -> Ints:
    sums = np.zeros(len(ACCOUNTS), np.int64)
    sums[[_INDEX[name] for name in _OF_STEPS]] = of_steps.sum(axis=1)
    np.add.at(sums, accounts, amounts)
    return sums


def _by_segment(begin: Ints, end: Ints, segments: Sequence[Segment]) -> Ints:
    edges = np.array([segment.begin for segment in segments] + [segments[-1].end], np.int64)
    lengths = np.concatenate([[0], np.cumsum(end - begin)])
    # Free time before an edge: all intervals that ended by then, plus the first part of an interval that the edge cuts.
    index = np.searchsorted(end, edges, side="right")
    partial = np.zeros(len(edges), np.int64)
    within = index < len(begin)
    partial[within] = np.maximum(edges[within] - begin[index[within]], 0)
    return np.diff(lengths[index] + partial)


class _StepShares:
    """Splits the time of each step into accounts, such as `data_wait`. To save memory, one GPU slot is handled at a
    time."""

    def __init__(self, timeline: Timeline, baselines: Mapping[int, Band], own: Mapping[int, StepTime]):
        self.steps = timeline.steps
        self.first = first_rows(timeline)
        sizes = [epoch.size for epoch in timeline.epochs]
        worlds = [baselines.get(e.size) if e.begin < timeline.work_changed_at else None for e in timeline.epochs]
        self.upper = np.array([band.upper if band else ENDLESS for band in worlds], np.int64)
        self.upper_first = np.array([band.first if band else ENDLESS for band in worlds], np.int64)
        self.alone = np.array([band is None for band in worlds], np.bool_)
        self.own = np.array([own[size].upper if size in own else ENDLESS for size in sizes], np.int64)
        self.disturbed, self.frozen = by_time.disturbed(timeline), frozen(timeline)

    def of(self, slot: Slot, rows: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
        steps = self.steps
        ended = steps.end[rows]
        end = np.clip(ended, slot.allocated, slot.released)
        floor = np.concatenate([[slot.allocated], end[:-1]]) if len(rows) else end  # rows are sorted by end
        begin = np.clip(steps.begin[rows], floor, end)
        recompute = np.where(steps.survives[rows], 0, end - begin)
        left = end - begin - recompute
        data = np.clip(steps.data_ns[rows], 0, left)
        stall = np.clip(steps.checkpoint_ns[rows], 0, left - data)
        left = left - data - stall
        epoch = steps.epoch[rows]
        upper = np.where(self.first[rows], self.upper_first[epoch], self.upper[epoch]) if len(rows) else left
        drag = np.maximum(left - upper, 0)
        if self.alone.any() and self.disturbed and len(rows):
            drag = np.maximum(drag, np.where(self.alone[epoch], self._stood(rows, begin, end, left), 0))
        free = np.concatenate([[slot.allocated], end]), np.concatenate([begin, [slot.released]])
        return ended, np.stack([recompute, data, stall, drag, left - drag]), free

    def _stood(self, rows: Ints, begin: Ints, end: Ints, left: Ints) -> Ints:
        longest = self.own[self.steps.epoch[rows]]
        counts = ~by_time.quiet(begin, end, self.disturbed) & ~self.first[rows] & (left > LONE_FACTOR * longest)
        stood = np.where(counts, left - longest, 0)
        for since, until in self.frozen:
            interrupted = (begin < until) & (end > until)
            held = np.minimum(until - np.maximum(begin, since), left)
            stood = np.maximum(stood, np.where(interrupted, held, 0))
        return stood


def _rows_by_slot(timeline: Timeline) -> list[Ints]:
    place = {(*slot.key, slot.local_rank): number for number, slot in enumerate(timeline.slots)}
    slot_of = [place.get((*p.key, p.local_rank), len(place)) for p in timeline.processes]
    small = np.int16 if len(place) < 2**15 else np.int64  # numpy sorts short integers in linear time
    number = np.array(slot_of, small)[timeline.steps.process]
    order = np.argsort(number, kind="stable")
    cuts = np.searchsorted(number[order], np.arange(len(timeline.slots) + 1))
    return [order[cuts[i] : cuts[i + 1]] for i in range(len(timeline.slots))]


class _Between:
    """Finds the account of the time that a GPU slot spends outside of steps, for each segment of the job's time."""

    def __init__(self, timeline: Timeline, segments: Sequence[Segment]):
        processes, epochs = timeline.processes, list(enumerate(timeline.epochs))
        members = ((number, processes[row]) for number, epoch in epochs for row in epoch.processes)
        self._worked = grouped(((*p.key, p.local_rank), number) for number, p in members)  # epochs by slot
        self._at_work = np.array([_INDEX[_ACCOUNT_OF_PHASE[each.phase]] for each in segments], np.int64)
        others = [  # this GPU may have worked if a rank has no log; otherwise this GPU idles while others step
            _INDEX["unattributed" if timeline.epochs[each.epoch].unheard else "idle"] if each.epoch >= 0 else account
            for each, account in zip(segments, self._at_work.tolist(), strict=True)
        ]
        self._apart = np.array(others, np.int64)
        self._epoch = np.array([each.epoch for each in segments], np.int64)  # -1: the last of `works`, always False
        self._epochs = len(timeline.epochs) + 1

    def accounts(self, slot: Slot) -> Ints:
        works = np.zeros(self._epochs, np.bool_)
        works[self._worked.get((*slot.key, slot.local_rank), [])] = True
        return np.where(works[self._epoch], self._at_work, self._apart)


def _split(segments: Sequence[Segment], windows: Sequence[Window]) -> list[Segment]:
    edges = sorted({edge for window in windows for edge in window})
    result = []
    for segment in segments:
        inner = edges[bisect.bisect_right(edges, segment.begin) : bisect.bisect_left(edges, segment.end)]
        cuts = itertools.pairwise([segment.begin, *inner, segment.end])
        result += [Segment(segment.phase, lo, hi, segment.epoch) for lo, hi in cuts]
    return result


def _inside(at: Ints, windows: Sequence[Window]) -> Bools:
    return ~by_time.quiet(at - 1, at, windows)
