"""Simulates the failures, outages and work of a job, many times at once.

A sample is one simulated history of the job. Each pass of a Python loop simulates every sample up to its next event.
Numpy handles all samples and all variants of a job at once. All variants use the same random numbers, so that their
results do not differ by chance. Most arrays have the shape variants × samples.

Each failure begins an outage (detection, waiting for nodes, restart). After an outage, the job works, with a checkpoint
after each interval. A failure during an outage begins the next outage; a failure during work loses all work since the
last checkpoint. A job that runs on fewer nodes than planned also restarts when a lost node returns. The durations of
all kinds of time spent (`ACCOUNTS`) add up to the duration of the job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError
from harness.forecast.job_model import DAY_S, Job

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FAILURES_MAX = 20_000  # that a job may be expected to meet in its work
EVENTS_MAX = 20_000_000  # failures of all histories
HISTORIES_MAX = 25_000
PATIENCE = 10.0  # a history ends unfinished after so many times the work
ROUNDING_S = 1e-3  # two moments that are closer are one
OUTAGE = ("detect", "wait", "restart")
ACCOUNTS = ("work", *OUTAGE, "lost", "stall", "slower")
REPAIR_SPREAD = 1.936  # of the logarithm: mean 132.8 h and median 20.4 h in the trace of InfiniteHBD
_GIVEN = ("checkpoint_every", "checkpoint_stall", "restart", "spares", "repair", "queue", "smallest", "pace")
_OF_NODES = ("together", "together_nodes", "lemons", "lemon_factor", "lemons_found")


@dataclass(frozen=True)
class Histories:
    """The simulated histories of a job. `accounts` holds the seconds of each kind of time spent. `outages` holds, for
    each cause, the time of outages and of lost work. The last entries of `outages` and `failures` are for planned
    restarts after a lost node has returned."""

    time: Floats  # variants × samples
    done: Bools
    first: Floats  # time of the first failure; infinite without one
    accounts: dict[str, Floats]
    outages: Floats  # variants × samples × (causes + 1)
    failures: Ints
    waits: Ints  # outages in which nodes were missing
    saves: Floats

    @property
    def ettr(self) -> Floats:
        """Returns the effective training time ratio: the time that the useful work would take on all nodes, divided by
        the whole time."""
        return np.divide(self.accounts["work"], self.time, out=np.ones_like(self.time), where=self.time > 0)

    @property
    def days(self) -> Floats:
        return np.where(self.done, self.time, np.inf) / DAY_S


def simulate(jobs: Sequence[Job], samples: int, seed: int) -> Histories:
    """Simulates variants of a job many times each. All variants must have the same kinds of failures, in the same
    order. Raises `UsageError` for too many events or histories."""
    most, histories = max(job.work_s / job.mtbf_s for job in jobs), len(jobs) * samples
    allowed = min(FAILURES_MAX, EVENTS_MAX // histories)
    if most > allowed or histories > HISTORIES_MAX:
        raise UsageError(
            f"the job would meet about {most:,.0f} failures in each of {histories:,} histories; up to {allowed:,} in "
            f"{HISTORIES_MAX:,} can be simulated: take fewer GPUs, days, samples or changes, or lower rates"
        )
    play = _Play(jobs, samples, np.random.default_rng(seed))
    for _ in range(int(3 * PATIENCE * most) + 1000):  # rarely as many: then a history ends unfinished, too
        if not play.active.any():
            break
        play.go_on()
    return play.result()


class _Play:
    def __init__(self, jobs: Sequence[Job], samples: int, dice: np.random.Generator):
        self.dice, self.samples, self.shape = dice, samples, (len(jobs), samples)
        self.gaps, causes = jobs[0].gaps, jobs[0].causes
        self.nodes, self.work = _column([job.nodes for job in jobs]), _column([job.work_s for job in jobs])
        names = (*_GIVEN, *_OF_NODES)
        self.given = {name: self._of_sample([job.settings[name].values for job in jobs]) for name in names}
        self.takes_node = np.array([each.takes_node for each in causes], bool)
        self.back = np.array([math.nan if each.back_s is None else each.back_s for each in causes])
        self.detection = _Table([[each.detection.values for each in job.causes] for job in jobs], samples, dice)
        self.restarts = _Table([[each.restart.values for each in job.causes] for job in jobs], samples, dice)
        rates = np.array([[each.per_node_day / DAY_S for each in job.causes] for job in jobs])[:, None, :]
        self.cumulated = np.cumsum(rates * _uncertain([each.counted for each in causes], samples, dice), axis=2)
        self.rate = self.cumulated[..., -1] if causes else np.zeros(self.shape)
        self.lemons = np.floor(self.given["lemons"] * self.nodes) + np.zeros(self.shape)
        self.usual = self.nodes / (self.nodes + (self.given["lemon_factor"] - 1) * self.lemons)
        self.smallest = np.ceil(self.given["smallest"] * self.nodes - 1e-9)
        self.sizes = sorted({1, *map(int, self.given["together_nodes"].flat)})
        self.time, self.saved, self.saves = (np.zeros(self.shape) for _ in range(3))
        self.met = np.zeros(self.shape, np.int64)  # failures
        self.first = np.full(self.shape, np.inf)
        self.accounts = {name: np.zeros(self.shape) for name in ACCOUNTS}
        self.outages = np.zeros((*self.shape, len(causes) + 1))
        self.failures = np.zeros(self.outages.shape, np.int64)
        self.waits = np.zeros(self.shape, np.int64)
        self.cause = np.zeros(self.shape, np.int64)  # of the outage that is under way
        self.left = {name: np.zeros(self.shape) for name in OUTAGE}  # of it
        self.at_work = np.broadcast_to(self.nodes, self.shape).copy()
        self.away = _Away(self.shape)
        self.begin = dice.integers(max(1, len(self.gaps.trace)), size=samples)
        self.until = self._gap()  # the next failure, in mean gaps
        self.active = np.broadcast_to(self.work > 0, self.shape).copy()
        self.rows, self.columns = np.indices(self.shape)

    def _of_sample(self, values: Sequence[tuple[float, ...]]) -> Floats:
        """Returns the value of an input for each simulated history. Several measured values are replaced by the mean of
        a random sample of them (bootstrap)."""
        if max(map(len, values)) == 1:
            return _column([each[0] for each in values])
        dice = self.dice.random((self.samples, max(map(len, values))))
        drawn = (np.array(each)[(dice[:, : len(each)] * len(each)).astype(int)] for each in values)
        means: Floats = np.array([each.mean(axis=1) for each in drawn])
        return means

    def _gap(self) -> Floats:
        shape, trace = self.gaps.shape, self.gaps.trace
        drawn: Floats = self.dice.weibull(shape, self.samples) / math.gamma(1 + 1 / shape)
        return np.array(trace)[(self.begin + self.met) % len(trace)] if trace else np.broadcast_to(drawn, self.shape)

    def go_on(self) -> None:
        given = self.given
        hazard = self.rate * self.usual * (self.at_work + (given["lemon_factor"] - 1) * self.lemons)
        with np.errstate(over="ignore"):  # of hardly any hazard: it never comes
            until_failure = np.divide(self.until, hazard, out=np.full(self.shape, np.inf), where=hazard > 0)
        detect, wait = self.left["detect"], self.left["wait"]
        until_failure = until_failure + np.where(until_failure > detect, wait, 0)  # nodes at rest do not fail
        outage = detect + wait + self.left["restart"]
        share = self.at_work / self.nodes
        pace = np.where(share < 1, share * given["pace"], 1.0)
        to_do = self.work - self.saved
        saves = np.maximum(np.ceil(to_do / given["checkpoint_every"] - 1e-9) - 1, 0)
        until_done = outage + to_do / pace + saves * given["checkpoint_stall"]
        until_back = self._until_back(outage)
        step = np.minimum(np.minimum(until_failure, until_done), np.minimum(until_back, self._patience()))
        step = np.where(self.active, np.maximum(step, 0), 0)
        fails = self.active & (until_failure <= step)
        done = self.active & (until_done <= step) & ~fails
        returns = self.active & (until_back <= step) & ~fails & ~done
        self._spend(step, outage)
        lost = self._work(np.maximum(step - outage, 0), pace, done, returns)
        self.time += step
        self.until = self.until - (step - np.clip(step - detect, 0, wait)) * hazard
        self.active &= ~done & (self._patience() > 0)
        if returns.any():
            self._restart_with_more(returns)
        if fails.any():
            self._fail(fails, lost)

    def _patience(self) -> Floats:
        return PATIENCE * self.work - self.time

    def _until_back(self, outage: Floats) -> Floats:
        small = (self.at_work < self.nodes) & self.active
        found = np.full(self.shape, np.inf)
        if small.any():
            found[small] = np.maximum(self.away.next_back(small, self.time) - self.time[small], outage[small])
        return found

    def _spend(self, step: Floats, outage: Floats) -> None:
        spent = np.minimum(step, outage)
        self.outages[self.rows, self.columns, self.cause] += spent
        for name, left in self.left.items():
            part = np.minimum(spent, left)
            self.accounts[name] += part
            self.left[name] = left - part
            spent = spent - part

    def _work(self, spent: Floats, pace: Floats, done: Bools, returns: Bools) -> Floats:
        """Returns the seconds of lost work. No work is lost if the job is done, or if it saves before a planned
        stop."""
        every, stall = self.given["checkpoint_every"], self.given["checkpoint_stall"]
        cycle = every / pace + stall
        saves = np.floor(spent / cycle + 1e-9)
        rest = np.maximum(spent - saves * cycle, 0)
        working = np.minimum(rest, every / pace)
        kept = np.where(done, self.work - self.saved, saves * every + np.where(returns, working * pace, 0))
        lost = np.where(done | returns, 0, working)
        self.accounts["work"] += kept
        self.accounts["slower"] += kept / pace - kept
        self.accounts["lost"] += lost
        self.accounts["stall"] += spent - kept / pace - lost
        self.saved += kept
        self.saves += saves + returns
        return lost

    def _restart_with_more(self, rows: Bools) -> None:
        there = self.nodes + self.given["spares"] - self.away.counted(self.time + ROUNDING_S, self.given["spares"])
        self.at_work = np.where(rows, np.clip(there, self.smallest, self.nodes), self.at_work)
        planned = self.failures.shape[2] - 1
        self.cause = np.where(rows, planned, self.cause)
        self.failures[..., planned] += rows
        self.left["restart"] = np.where(rows, self.given["restart"], self.left["restart"])

    def _fail(self, fails: Bools, lost: Floats) -> None:
        self.first = np.where(fails & (self.met == 0), self.time, self.first)
        self.met = self.met + fails
        drawn = self.dice.random(self.samples)[None, :] * self.rate
        cause = np.minimum((self.cumulated <= drawn[..., None]).sum(axis=2), self.cumulated.shape[2] - 1)
        self.cause = np.where(fails, cause, self.cause)
        self.outages[self.rows, self.columns, self.cause] += np.where(fails, lost, 0)
        self.failures[self.rows, self.columns, self.cause] += fails
        self.until = np.where(fails, self._gap(), self.until)
        new = {"detect": self.detection.draw(cause, self.dice), "restart": self.restarts.draw(cause, self.dice)}
        self.left = {name: np.where(fails, new.get(name, 0), left) for name, left in self.left.items()}
        if self.lemons.any():
            self._find_lemons(fails)
        if self.takes_node.any():
            self._lose_nodes(fails & self.takes_node[cause], cause)
            self._replace_nodes(fails)

    def _find_lemons(self, fails: Bools) -> None:
        hit, found = self.dice.random((2, self.samples))
        weight = self.given["lemon_factor"] * self.lemons
        chance = weight / (weight + np.maximum(self.at_work - self.lemons, 1e-9))
        self.lemons = self.lemons - (fails & (hit < chance) & (found < self.given["lemons_found"]))

    def _lose_nodes(self, rows: Bools, cause: Ints) -> None:
        several = self.dice.random(self.samples) < self.given["together"]
        sizes = np.where(several, self.given["together_nodes"], 1)
        for size in self.sizes:
            hit = rows & (sizes == size)
            if not hit.any():
                continue
            samples = np.flatnonzero(hit.any(axis=0))  # variants have the same dice
            deviation = self.dice.standard_normal((len(samples), size))[np.searchsorted(samples, np.nonzero(hit)[1])]
            repair, queue = (_of(self.given[name], hit)[:, None] for name in ("repair", "queue"))
            back = np.minimum(repair * np.exp(REPAIR_SPREAD * deviation - REPAIR_SPREAD**2 / 2), queue)
            fixed = self.back[cause[hit]][:, None]
            self.away.add(hit, self.time[hit][:, None] + np.where(np.isnan(fixed), back, fixed), self.time)

    def _replace_nodes(self, fails: Bools) -> None:
        there = self.nodes + self.given["spares"] - self.away.counted(self.time, self.given["spares"])
        self.at_work = np.where(fails, np.clip(there, self.smallest, self.nodes), self.at_work)
        short = fails & (there < self.smallest)
        if short.any():
            may_lack = _of(self.nodes + self.given["spares"] - self.smallest, short).astype(int)
            back = self.away.when_only(short, may_lack)
            self.left["wait"][short] = np.maximum(back - self.time[short] - self.left["detect"][short], 0)
            self.waits += short & (self.left["wait"] > 0)

    def result(self) -> Histories:
        done = self.saved >= self.work * (1 - 1e-9)
        counts = self.failures, self.waits, self.saves
        return Histories(self.time, done, self.first, self.accounts, self.outages, *counts)


class _Away:
    """The times at which lost nodes are back from repair, in each simulated history. Only the first `used` times of
    each history can belong to nodes that are still away. The times are sorted (the latest first) only when their order
    is needed."""

    def __init__(self, shape: tuple[int, ...]):
        self.back = np.full((*shape, 8), -np.inf)
        self.used = np.zeros(shape, np.int64)

    def add(self, rows: Bools, back: Floats, time: Floats) -> None:
        """Adds newly lost nodes. `back` holds the times at which the lost nodes return, only for the histories in
        `rows`; its shape is histories × nodes."""
        size = back.shape[1]
        full = rows & (self.used + size > self.back.shape[2])
        if full.any():
            self._order(full, time)
            if (self.used[full] + size > self.back.shape[2] // 2).any():
                more = np.full((*self.used.shape, self.back.shape[2] + size), -np.inf)
                self.back = np.concatenate([self.back, more], axis=2)
        variant, sample = np.nonzero(rows)
        places = self.used[rows][:, None] + np.arange(size)
        self.back[variant[:, None], sample[:, None], places] = back
        self.used[rows] += size

    def counted(self, time: Floats, enough: Floats) -> Ints:
        """Returns how many lost nodes are away in each simulated history. A result up to `enough` is not exact, because
        it may include nodes that are already back."""
        unsure = self.used > enough
        if unsure.any():
            self._order(unsure, time)
        return self.used

    def when_only(self, rows: Bools, may_lack: Ints) -> Floats:
        """Returns the time from which at most `may_lack` nodes are away, for the histories in `rows`. The last call of
        `counted` must have returned more than `may_lack` nodes for each history in `rows`."""
        held = self.back[rows]
        found: Floats = held[np.arange(len(held)), np.minimum(may_lack, held.shape[1] - 1)]
        return found

    def next_back(self, rows: Bools, time: Floats) -> Floats:
        held = self.back[rows, : int(self.used[rows].max(initial=0)) + 1]
        found: Floats = np.where(held > time[rows][:, None], held, np.inf).min(axis=1)
        return found

    def _order(self, rows: Bools, time: Floats) -> None:
        most = int(self.used[rows].max())
        held = -np.sort(-self.back[rows, :most], axis=1)
        away = held > time[rows][:, None]
        self.back[rows, :most] = np.where(away, held, -np.inf)
        self.used[rows] = away.sum(axis=1)


class _Table:
    """Measured values by variant and kind of failure, from which each simulated failure draws one. Each history draws
    only from its own random sample of the measured values (bootstrap)."""

    def __init__(self, values: Sequence[Sequence[tuple[float, ...]]], samples: int, dice: np.random.Generator):
        most = max((len(each) for row in values for each in row), default=1)
        self.values = np.array([[np.resize(each, most) for each in row] for row in values])
        self.counts = np.array([len(each) for each in values[0]])
        self.picked = (dice.random((samples, len(self.counts), most)) * self.counts[:, None]).astype(np.int32)

    def draw(self, cause: Ints, dice: np.random.Generator) -> Floats:
        variant, sample = np.arange(cause.shape[0])[:, None], np.arange(cause.shape[1])
        which = (dice.random(cause.shape[1]) * self.counts[cause]).astype(int)
        found: Floats = self.values[variant, cause, self.picked[sample, cause, which]]
        return found


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)[:, None]


def _of(values: Floats, rows: Bools) -> Floats:
    return np.broadcast_to(values, rows.shape)[rows]


def _uncertain(counts: Sequence[int | None], samples: int, dice: np.random.Generator) -> Floats:
    """Returns random factors for the failure rates, with the shape 1 × samples × causes. The factors reflect the
    uncertainty of rates that were estimated from `counts` failures."""
    factors = np.ones((1, samples, len(counts)))
    for place, count in enumerate(counts):
        if count:
            factors[0, :, place] = dice.standard_gamma(count, samples) / count
    return factors
