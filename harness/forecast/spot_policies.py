"""Simulates a job that must meet a deadline, and therefore moves between spot nodes and on-demand nodes.

The policies for moving the job are those of the paper "Can't Be Late" (NSDI 2024). A changeover is the time without
progress when the job moves to other nodes. The omniscient policy knows in advance when spot nodes are available.
On-demand nodes are always available. Times are in hours, and arrays have the shape samples × ticks (time steps)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
TICKS_MAX = 5000  # of a job
IDLE, SPOT, ON_DEMAND = range(3)
POLICIES = ("greedy", "uniform progress", "omniscient")


@dataclass(frozen=True)
class Deadline:
    compute_h: float
    deadline_h: float
    changeover_h: float
    ratio: float

    @property
    def tick_h(self) -> float:
        fine = self.changeover_h / 2 if self.changeover_h else self.deadline_h
        return max(min(fine, self.deadline_h / 500), self.deadline_h / TICKS_MAX)


@dataclass(frozen=True)
class Hours:
    """A job's hours in each simulated history: hours of progress and paid hours, on spot and on-demand nodes."""

    on_demand: Floats
    spot: Floats
    paid_on_demand: Floats
    paid_spot: Floats
    done: Floats  # infinite: not by the deadline


def spells(job: Deadline, samples: int, share: float | Floats, spell_h: float, dice: np.random.Generator) -> Bools:
    """Draws when spot nodes are available: for a `share` of the time, in random periods of `spell_h` hours on average.
    The result has the shape samples × ticks (time steps)."""
    ticks = math.ceil(job.deadline_h / job.tick_h)
    some = np.clip(share, 1e-9, 1 - 1e-9)
    goes = 1 - np.exp(-job.tick_h / spell_h)
    comes = 1 - np.exp(-job.tick_h * some / ((1 - some) * spell_h))
    there = np.empty((samples, ticks), np.bool_)
    now = dice.random(samples) < share
    for tick in range(ticks):
        there[:, tick] = now
        flip = dice.random(samples) < np.where(now, goes, comes)
        now = np.where(share >= 1, True, np.where(share <= 0, False, now ^ flip))
    return there


def run_policy(policy: str, job: Deadline, there: Bools) -> Hours:
    return _omniscient(job, there) if policy == "omniscient" else _Online(policy, job, there).run()


class _Online:
    def __init__(self, policy: str, job: Deadline, there: Bools):
        self.uniform, self.job, self.there = policy == "uniform progress", job, there
        samples = len(there)
        self.mode = np.full(samples, IDLE)
        self.to_do = np.full(samples, job.compute_h)
        self.change = np.zeros(samples)  # hours of a changeover that are left
        self.forced = np.zeros(samples, np.bool_)  # on demand to the end
        self.progress, self.paid = np.zeros((2, 3, samples))
        self.done = np.full(samples, np.inf)

    def run(self) -> Hours:
        for tick in range(self.there.shape[1]):
            if not self.to_do.any():
                break
            self._choose(tick * self.job.tick_h, self.there[:, tick])
            self._work(tick * self.job.tick_h)
        return Hours(self.progress[ON_DEMAND], self.progress[SPOT], self.paid[ON_DEMAND], self.paid[SPOT], self.done)

    def _choose(self, now: float, there: Bools) -> None:
        job, mode = self.job, self.mode
        before = mode.copy()
        mode[(mode == SPOT) & ~there] = IDLE
        # The safety net: two changeovers must still fit, to one kind of nodes and back; a tick, for clocks are coarse.
        late = job.deadline_h - now < self.to_do + 2 * job.changeover_h + job.tick_h
        self.forced |= (mode == IDLE) & late
        mode[self.forced] = ON_DEMAND
        free = ~self.forced
        if self.uniform:
            done, due = job.compute_h - self.to_do, job.compute_h / job.deadline_h
            mode[free & (mode == ON_DEMAND) & (done >= due * (now + 2 * job.changeover_h))] = IDLE
            mode[free & (mode == IDLE) & (done < due * now)] = ON_DEMAND
            mode[free & there & ~late] = SPOT
        else:
            mode[free & there & (mode == IDLE)] = SPOT
        mode[self.to_do <= 0] = IDLE
        self.change = np.where((mode != before) & (mode != IDLE), job.changeover_h, self.change)

    def _work(self, now: float) -> None:
        at_work = self.mode != IDLE
        lost = np.where(at_work, np.minimum(self.change, self.job.tick_h), 0)
        gained = np.where(at_work, np.minimum(self.job.tick_h - lost, self.to_do), 0)
        self.change = self.change - lost
        self.to_do = self.to_do - gained
        places = self.mode, np.arange(len(self.mode))
        self.progress[places] += gained
        self.paid[places] += lost + gained
        over = at_work & (self.to_do <= 1e-9)
        self.to_do[over] = 0
        self.done = np.where(over, now + lost + gained, self.done)


def _omniscient(job: Deadline, there: Bools) -> Hours:
    worth = job.ratio * job.changeover_h / (job.ratio - 1) if job.ratio > 1 else math.inf
    found = np.zeros((4, len(there)))
    for sample, row in enumerate(there):
        spells_h = (len(list(run)) * job.tick_h for on, run in itertools.groupby(row.tolist()) if on)
        spot = paid = 0.0
        for length in sorted(spells_h, reverse=True):
            gained = min(length - job.changeover_h, job.compute_h - spot)
            if length <= worth or gained <= 0:
                break
            spot, paid = spot + gained, paid + gained + job.changeover_h
        rest = job.compute_h - spot
        found[:, sample] = rest, spot, rest + (job.changeover_h if rest else 0), paid
    return Hours(found[0], found[1], found[2], found[3], np.full(len(there), job.deadline_h))
