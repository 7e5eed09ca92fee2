"""Compares two runs by the loss, gradient norm and learning rate of each step that was not rolled back."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from harness.judge import thresholds as limits
from harness.log.reading import is_told
from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Floats, Ints, Steps, Timeline

MISSING_MAX = 100_000  # most steps that are counted as missing
WORDS = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate"}
CURVES = tuple(WORDS)
_RANK_BITS = 24
_COLUMNS = ("step", *CURVES, "digest", "first", "count", "applied", "sync_ns")


@dataclass(frozen=True)
class Curve:
    """The logged values of each step that was not rolled back. `surviving` takes the values of the lowest rank that
    logs a loss. `of_each_rank` takes the values of one rank at a time."""

    step: Ints
    loss: Floats
    grad_norm: Floats
    lr: Floats
    digest: Ints
    first: Ints
    count: Ints
    applied: Ints  # 0: the update was skipped
    sync_ns: Ints  # time of the gradient sync; 0: not told
    took_ns: Ints  # duration on the slowest rank

    def __len__(self) -> int:
        return len(self.step)

    def at(self, rows: Ints) -> Self:
        return type(self)(**{name: column[rows] for name, column in vars(self).items()})

    def until(self, later: Self) -> Self:
        """Joins two curves: this curve before the first step of the curve `later`, then the curve `later`."""
        kept = vars(self.at(np.flatnonzero(self.step < later.step[0])))
        return type(self)(**{name: np.concatenate([column, getattr(later, name)]) for name, column in kept.items()})


def surviving(steps: Steps, of_all: bool = False) -> Curve:
    """Returns the values of each step that was not rolled back, from the lowest rank that logs a loss. With `of_all`,
    the loss is the mean over the samples of all ranks."""
    rows = np.flatnonzero(counted(steps))
    chosen = _one_row_per_step(steps, rows)
    columns = {name: getattr(steps, name)[chosen] for name in _COLUMNS}
    cell, count = cells(steps.step[rows])
    if of_all:
        columns["loss"] = _mean_of_ranks(steps, rows, cell, count)
    longest = np.full(count, -1)
    np.maximum.at(longest, cell, np.maximum(steps.end[rows] - steps.begin[rows], 0))
    return Curve(**columns, took_ns=longest[longest >= 0])


def _mean_of_ranks(steps: Steps, rows: Ints, cell: Ints, count: int) -> Floats:
    order = np.argsort(steps.rank[rows], kind="stable")  # equal losses give an equal sum, whichever rank is first
    rows, cell = rows[order], cell[order]
    samples, told = steps.rank_samples[rows], is_told(steps.loss[rows])
    weight = np.where(told, samples if (samples[told] > 0).all() else 1, 0)
    total = np.bincount(cell, weight, count)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = np.bincount(cell, np.where(told, steps.loss[rows], 0.0) * weight, count) / total
    mean[total == 0] = np.copysign(np.nan, -1)
    return np.asarray(mean[np.bincount(cell, minlength=count) > 0], np.float64)


def counted(steps: Steps) -> Bools:
    """Marks the rows that were not rolled back, up to the last step that all ranks did."""
    last = int(steps.step[steps.complete & steps.survives].max(initial=0))  # later steps may have been rolled back
    return np.asarray(steps.survives & (steps.complete | (steps.step <= last)), np.bool_)


def _one_row_per_step(steps: Steps, rows: Ints) -> Ints:
    rank = steps.rank[rows]
    telling = rank[np.isfinite(steps.loss[rows])]
    speaker = int(telling.min(initial=np.iinfo(np.int64).max))
    small = np.int16 if not len(rank) or rank.max() < 2**15 else np.int64  # numpy sorts short integers in linear time
    order = np.argsort(np.where(rank == speaker, -1, rank).astype(small), kind="stable")[::-1]
    cell, count = cells(steps.step[rows])
    first = np.full(count, -1)
    first[cell[order]] = rows[order]  # the last write stays
    return first[first >= 0]


@dataclass(frozen=True)
class Comparison:
    """The steps that both runs did and that neither run rolled back, with the values of both runs."""

    step: Ints
    run: Curve
    fault_free: Curve
    differs: dict[str, Bools]  # per curve: rows that differ in any bit
    fault_free_last: int
    run_steps: int  # number of steps, including those that the fault-free run lacks

    @property
    def max_abs_diff(self) -> float | None:
        return float(np.max(self.apart("loss"))) if len(self.step) else None

    def alone(self, curve: str) -> Ints:
        """Returns the steps at which only one of the two runs logs the value `curve`. A single gap in the fault-free
        run is ignored."""
        mine, other = is_told(getattr(self.run, curve)), is_told(getattr(self.fault_free, curve))
        only_mine = mine & ~other
        return self.step[mine != other if only_mine.sum() > limits.HOLES_MAX else other & ~mine]

    def apart(self, curve: str) -> Floats:
        return distance(getattr(self.run, curve), getattr(self.fault_free, curve))

    @property
    def _last_losses(self) -> tuple[Floats, Floats]:
        last = max(1, round(limits.FINAL_SHARE * len(self.step)))
        return self.run.loss[-last:], self.fault_free.loss[-last:]

    @property
    def final_gap_percent(self) -> float | None:
        """Returns by how many percent the mean of the run's last losses exceeds the fault-free run's, or `None` if
        unknown."""
        mine, other = self._last_losses
        if not len(self.step) or not np.isfinite(other).all() or not np.mean(other):
            return None
        return float(100 * np.mean(mine - other) / np.mean(other))

    @property
    def final_scatter_percent(self) -> float:
        """Returns half the width of the 99 % confidence interval of `final_gap_percent`, by the method of batch means.
        Returns 0 if there are too few steps."""
        mine, other = self._last_losses
        length = len(mine) // limits.BLOCKS  # Schmeiser, Batch size effects in the analysis of simulation output, 1982
        if length < 2:
            return 0.0
        mine, other = mine[-length * limits.BLOCKS :], other[-length * limits.BLOCKS :]
        means = np.mean((mine - other).reshape(limits.BLOCKS, length), axis=1)
        half = 100 * limits.T_99 * np.std(means, ddof=1) / np.sqrt(limits.BLOCKS) / abs(np.mean(other))
        return float(half) if np.isfinite(half) else 0.0

    @property
    def near_zero(self) -> bool:
        """Returns True if the fault-free run's last losses are almost 0, compared with all its losses."""
        _, last = self._last_losses
        finite = self.fault_free.loss[np.isfinite(self.fault_free.loss)]
        size = abs(float(np.mean(last))) if len(last) else np.nan
        return bool(len(finite) and size < limits.NEAR_ZERO * max(float(np.ptp(finite)), float(np.mean(np.abs(last)))))

    @property
    def identical(self) -> bool:
        alone = any(len(self.alone(name)) for name in CURVES)
        return bool(len(self.step)) and self.first_divergent_step is None and not alone

    @property
    def first_divergent_step(self) -> int | None:
        rows = np.flatnonzero(np.logical_or.reduce(list(self.differs.values())))
        return int(self.step[rows[0]]) if len(rows) else None


def compare(run: Curve, fault_free: Curve) -> Comparison:
    step, mine, other = np.intersect1d(run.step, fault_free.step, assume_unique=True, return_indices=True)
    left, right = run.at(mine), fault_free.at(other)
    differs = {name: unlike(getattr(left, name), getattr(right, name)) for name in CURVES}
    return Comparison(step, left, right, differs, int(fault_free.step[-1]) if len(fault_free) else 0, len(run))


def of_each_rank(run: Steps, fault_free: Steps, last: int) -> Iterator[tuple[str, Comparison]]:
    """Yields the name of each rank that both runs have, such as " of rank 1", with a comparison of the rank's steps up
    to step `last`."""
    pairs = np.stack(paired(run, fault_free))
    pairs = pairs[:, run.step[pairs[0]] <= last]
    pairs = pairs[:, np.argsort(run.rank[pairs[0]], kind="stable")]
    for mine, other in np.split(pairs, np.flatnonzero(np.diff(run.rank[pairs[0]])) + 1, axis=1) if pairs.size else ():
        curves = (
            Curve(
                **{name: getattr(steps, name)[rows] for name in _COLUMNS}, took_ns=steps.end[rows] - steps.begin[rows]
            )
            for steps, rows in ((run, mine), (fault_free, other))
        )
        yield f" of rank {run.rank[mine[0]]}", compare(*curves)


def bits(values: Floats) -> Ints:
    """Returns the bit pattern of each value as an integer. All NaNs get one common bit pattern."""
    return np.ascontiguousarray(np.where(np.isnan(values), np.nan, values)).view(np.int64)


def unlike(a: Floats, b: Floats) -> Bools:
    """Marks each index at which the values in `a` and `b` are both logged and differ in any bit."""
    return np.asarray((bits(a) != bits(b)) & is_told(a) & is_told(b), np.bool_)


def distance(a: Floats, b: Floats) -> Floats:
    """Returns |a - b|: 0 for equal infinities and for two NaNs, and infinity for a NaN and a number."""
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(a - b)
    return np.asarray(np.where(unlike(a, b), np.where(np.isnan(apart), np.inf, apart), 0.0))


def apart(run: Steps, fault_free: Steps) -> tuple[Floats, Floats]:
    """Returns the steps that both runs did and neither rolled back, and each step's largest loss difference of any
    rank."""
    rows, others = paired(run, fault_free)
    step, group = np.unique(run.step[rows], return_inverse=True)
    largest = np.zeros(len(step))
    np.maximum.at(largest, group, distance(run.loss[rows], fault_free.loss[others]))
    return step.astype(np.float64), largest


class ByRank(NamedTuple):
    """The row (in `Steps`) of the last execution of each step by each rank, without rows that were rolled back."""

    key: Ints  # step and rank in one number, sorted
    row: Ints  # in `Steps`


def by_rank(steps: Steps) -> ByRank:
    rows = np.flatnonzero(counted(steps))
    key, last = np.unique(((steps.step[rows] << _RANK_BITS) + steps.rank[rows])[::-1], return_index=True)
    return ByRank(key, rows[::-1][last])


def paired(run: Steps, fault_free: Steps) -> tuple[Ints, Ints]:
    """Returns the rows of both runs that have the same step and the same rank, as two arrays of equal length."""
    ours, theirs = by_rank(run), by_rank(fault_free)
    _, left, right = np.intersect1d(ours.key, theirs.key, assume_unique=True, return_indices=True)
    return ours.row[left], theirs.row[right]


def near_by(values: Floats, reach: int = 1) -> Floats:
    """Returns for each value the maximum of this value and the `reach` values before and after it."""
    padded = np.pad(values, reach, mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1))


def ulps(values: Floats) -> Floats:
    """Returns the size of one unit in the last place of each value, taken as a 32-bit float."""
    return np.nan_to_num(np.spacing(np.abs(values).astype(np.float32)).astype(np.float64))


def terms(run: Timeline) -> int:
    """Returns how many terms a loss or gradient norm sums: the number of parameters, estimated from a checkpoint's
    size."""
    told = max((each.get("tensor_bytes") or 0 for each in run.published), default=0)
    return int(max(limits.TERMS_LEAST, told // limits.PARAMETER_BYTES))


def rounding(values: Floats, terms: int) -> Floats:
    """Returns how far two 32-bit sums of the same `terms` numbers can differ, if added in different orders."""
    # Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41, 2019
    return np.asarray(np.sqrt(terms) * ulps(values) / 2)


def missing(curve: Curve, told: Ints | None, stride: int, before: int = 0) -> Ints:
    """Returns the expected steps that the curve lacks, but at most `MISSING_MAX` steps, as a log may claim any step
    number. The steps `told` are expected or, if `told` is `None`, all multiples of `stride` after the step `before`."""
    if not len(curve):
        return np.zeros(0, np.int64)
    if told is None:
        last = min(int(curve.step[-1]), before + (len(curve) + MISSING_MAX) * stride)
        told = np.arange((before // stride + 1) * stride, last + 1, stride)
    expected = told[told <= curve.step[-1]]
    return np.setdiff1d(expected, curve.step, assume_unique=True)[:MISSING_MAX]


def by_scale(skipped: Bools) -> Bools:
    """Marks the skipped updates that loss scaling explains, as in `torch.amp.GradScaler`. Each skipped update halves
    the loss scale, which begins at 2^16, and 2000 applied updates double it. At a loss scale of 1, infinite gradients
    have another cause."""
    excused = np.zeros(len(skipped), np.bool_)
    left, before = limits.HALVINGS, 0
    for row in np.flatnonzero(skipped).tolist():
        left = min(limits.HALVINGS_MAX, left + (row - before) // limits.GROWTH_INTERVAL)
        excused[row] = left > 0
        left = max(0, left - 1)
        before = row + 1
    return excused
