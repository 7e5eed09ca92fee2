"""Alarms: what the trainer said, and whether there was something to see where no fault was at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from harness.emitter import abnormal
from harness.judge.facts.by_time import SETTLING_STEPS, Moments, Spans
from harness.judge.facts.spikes import Spike
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Ints, Timeline

STEPS_BEFORE = 20  # an alarm about a slow rank is held against so many of its steps
SHARE_BORNE_OUT = 0.5  # of the excess that it told (a time, or else a share of the usual) must be in the log
EXCESS_MIN = 0.1  # over its peers; a rank that is less slow is not slow, whatever was told

Alarm = Mapping[str, Any]


class Said:
    """What the trainer said of one kind of thing, found by the step that it named and by when it was."""

    def __init__(self, run: Timeline, kind: str):
        alarms = [alarm for alarm in run.anomalies if alarm.get("kind") == kind]
        self.all: Sequence[Alarm] = alarms
        self._of_steps = Moments((alarm["at_step"], alarm) for alarm in alarms if alarm.get("at_step") is not None)
        self._of_none = max((alarm["at"] for alarm in alarms if alarm.get("at_step") is None), default=-NEVER)
        self._last = max((alarm["at"] for alarm in alarms), default=-NEVER)
        self._margin = run.uncertainty_ns

    def suspects(self) -> Mapping[int, int]:
        """The ranks that it named, and when it last did."""
        last: dict[int, int] = {}
        for alarm in self.all:
            if alarm.get("suspect") is not None:
                last[alarm["suspect"]] = max(alarm["at"], last.get(alarm["suspect"], alarm["at"]))
        return last

    def of(self, begin: int, steps: tuple[int, int] | None) -> bool:
        """Whether it said something since then, and of one of these steps, if it named one. `None`: of any step."""
        since = begin - self._margin
        if steps is None:
            return bool(self._last >= since)
        return self._of_none >= since or any(alarm["at"] >= since for alarm in self._of_steps.within(*steps))


def false_alarms(run: Timeline, at_work: Sequence[tuple[int, int]], found: Sequence[Spike]) -> list[Alarm]:
    """Anomalies outside of the windows `at_work` (ns) that the steps in the log do not bear out. What was seen there
    may be told some steps later."""
    over = np.append(run.progress.end, run.end)
    last = np.searchsorted(over, [end for _, end in at_work]) + SETTLING_STEPS
    late = over[np.minimum(last, len(over) - 1)].tolist()
    windows = Spans((begin, max(end, at), True) for (begin, end), at in zip(at_work, late, strict=True))
    steps = _Borne(run, found)
    outside = [alarm for alarm in run.anomalies if not any(windows.at(alarm["at"]))]
    return [alarm for alarm in outside if not (steps.slow_indeed(alarm) or steps.by_the_rules(alarm))]


def _about(alarm: Alarm) -> int:
    """The rank that it is about: any rank may tell of another one."""
    return int(alarm["rank"] if alarm.get("suspect") is None else alarm["suspect"])


class _Borne:
    """The steps of a run, to hold alarms against. A rank that is slow because its host is busy with other work is slow
    indeed: a trainer that says so is right."""

    def __init__(self, run: Timeline, found: Sequence[Spike]):
        self.run, self.spikes = run, dict[int, int]()  # when each was first to be seen, by step
        for spike in found:
            self.spikes[spike.seen] = min(spike.end, self.spikes.get(spike.seen, spike.end))

    def _before(self, alarm: Alarm) -> tuple[int, int]:
        """The steps up to the one that it names, or else all that were over by then, as places in `rows_by_process`: of
        the rank that it is about, else of the process that raised it."""
        mine = alarm["process"]
        if (rank := _about(alarm)) != alarm["rank"]:
            lives = self._lives.get(rank, [])
            mine = next((row for started, row in reversed(lives) if started <= alarm["at"]), mine)
        order, begins = self.run.rows_by_process
        first, last = int(begins[mine]), int(begins[mine + 1])
        end = first + int(np.searchsorted(self._ends[first:last], alarm["at"], side="right"))
        named = np.flatnonzero(self.run.steps.step[order[first:end]] == alarm.get("at_step"))
        return first, first + int(named[-1]) + 1 if len(named) else end

    @cached_property
    def _lives(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """When each process of a rank was started, and its row, in order of time."""
        found: dict[int, list[tuple[int, int]]] = {}
        for started, row in sorted((process.started, row) for row, process in enumerate(self.run.processes)):
            found.setdefault(self.run.processes[row].rank, []).append((started, row))
        return found

    @cached_property
    def _ends(self) -> Ints:
        return self.run.steps.end[self.run.rows_by_process[0]]

    @cached_property
    def _silent(self) -> Ints:
        """How many of the rows by process, up to each of them, do not tell how long they waited for others."""
        return np.append(0, np.cumsum(self.run.steps.sync_ns[self.run.rows_by_process[0]] < 0))

    @cached_property
    def _by_step(self) -> tuple[Ints, Ints]:
        """Rows that survive, step by step and in order of time, and their steps."""
        rows = np.flatnonzero(self.run.steps.survives)
        rows = rows[np.argsort(self.run.steps.step[rows], kind="stable")]
        return rows, self.run.steps.step[rows]

    def by_the_rules(self, alarm: Alarm) -> bool:
        """Whether the steps of the process that it is about are abnormal by the very rule that it names."""
        if alarm.get("kind") == abnormal.DIVERGENCE:
            seen = self.spikes.get(alarm.get("at_step", -1))
            return seen is not None and seen <= alarm["at"]
        if alarm.get("kind") not in abnormal.OF_STEPS:
            return False
        steps, (first, end) = self.run.steps, self._before(alarm)
        rows = self.run.rows_by_process[0][first + abnormal.replay_from(end - first) : end]
        watch, found = abnormal.Watch(), list[str]()
        columns = (steps.loss[rows], steps.grad_norm[rows], steps.end[rows] - steps.begin[rows], steps.data_ns[rows])
        for loss, norm, took, waited in zip(*(column.tolist() for column in columns), strict=True):
            found = watch.step_done(loss, norm, took, waited)
        return alarm["kind"] in found

    def slow_indeed(self, alarm: Alarm) -> bool:
        """Whether the rank's own time a step, without its waits, was above that of its peers, about as told."""
        told = alarm.get("slowdown")
        if alarm.get("kind") != "straggler" or not isinstance(told, int | float) or not told > 1:
            return False
        first, end = self._before(alarm)
        if first == end or self._silent[end] > self._silent[first]:
            return False
        rows = self._of_steps(self.run.rows_by_process[0][max(first, end - STEPS_BEFORE) : end], alarm["at"])
        rows = rows[np.argsort(self.run.steps.rank[rows], kind="stable")]
        ranks, begins = np.unique(self.run.steps.rank[rows], return_index=True)
        own = np.split(_own_ns(self.run, rows), begins[1:])
        medians = {rank: float(np.median(each)) for rank, each in zip(ranks.tolist(), own, strict=False)}
        # The lower median: with two ranks, the faster one is the yardstick.
        usual = sorted(medians.values())[(len(medians) - 1) // 2] if medians else 0.0
        mine = medians.get(_about(alarm))
        if mine is None or usual <= 0:
            return False
        # Its own time in the log has more in it than what a trainer compares, the same for all: a share says less.
        excess = float(alarm.get("excess_ns", (told - 1) * usual))
        return mine - usual >= max(EXCESS_MIN * usual, SHARE_BORNE_OUT * excess)

    def _of_steps(self, mine: Ints, at: int) -> Ints:
        """Rows of the same steps that were over by then, of all ranks."""
        rows, step = self._by_step
        numbers = np.unique(self.run.steps.step[mine])
        cuts = zip(np.searchsorted(step, numbers), np.searchsorted(step, numbers, side="right"), strict=True)
        same: Ints = np.concatenate([rows[first:end] for first, end in cuts])
        over: Ints = same[self.run.steps.end[same] <= at]
        return over


def _own_ns(run: Timeline, rows: Ints) -> Ints:
    steps = run.steps
    waits = (
        np.maximum(steps.sync_ns[rows], 0)
        + np.maximum(steps.data_ns[rows], 0)
        + np.maximum(steps.checkpoint_ns[rows], 0)
    )
    own: Ints = steps.end[rows] - steps.begin[rows] - waits
    return own
