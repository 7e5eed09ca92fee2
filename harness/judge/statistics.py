"""What several runs of one scenario say together. Pure: the bootstrap's dice are seeded.

One run that fails is a failed run, however good the others are: a stack that fails some of its runs is *flaky*. When
all of them pass, the question is how sure that makes us. For every bound the decision is on the tail: with 95 %
confidence, 90 % of all runs stay within it. Where that cannot be said, the answer is inconclusive, with the number
of further runs that would settle it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
COVERAGE = 0.90  # the share of runs the tail bound is about
RESAMPLES = 4000
RUNS_MAX = 1000
_NORMAL = statistics.NormalDist()
# One-sided tolerance factors of a normal sample, 90 % coverage at 95 % confidence, 2 to 10 values (Lieberman 1958).
_FACTORS = (20.581, 6.155, 4.162, 3.407, 3.006, 2.755, 2.582, 2.454, 2.355)


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of `values` (at least one)."""
    dice = np.random.default_rng(seed)
    data = np.asarray(values, float)
    found = np.median(data[dice.integers(len(data), size=(RESAMPLES, len(data)))], axis=1)
    low, high = np.percentile(found, [50 * (1 - confidence), 50 * (1 + confidence)])
    return float(low), float(high)


def tolerance_factor(runs: int) -> float:
    """How many standard deviations above the mean 90 % of a normal population lie, with 95 % confidence.

    Exact up to ten values; beyond that the approximation of Natrella 1963, within 1 %.
    """
    if runs < 2:
        return math.inf
    if runs - 2 < len(_FACTORS):
        return _FACTORS[runs - 2]
    share, sure = _NORMAL.inv_cdf(COVERAGE), _NORMAL.inv_cdf(CONFIDENCE)
    a = 1 - sure**2 / (2 * (runs - 1))
    b = share**2 - sure**2 / runs
    return (share + math.sqrt(share**2 - a * b)) / a


def tail_bound(values: Sequence[float]) -> float:
    """With 95 % confidence 90 % of all runs stay below. Durations and costs scatter by factors: where all values are
    positive their logarithms are taken as normal, else the values themselves. One value bounds nothing."""
    if len(values) < 2:
        return math.inf
    logs = min(values) > 0
    scale = [math.log(value) for value in values] if logs else list(values)
    bound = statistics.fmean(scale) + tolerance_factor(len(values)) * statistics.stdev(scale)
    return math.exp(min(bound, 700.0)) if logs else bound


def failure_interval(failures: int, runs: int) -> tuple[float, float]:
    """Two-sided 95 % interval of the rate of failures (Clopper and Pearson 1934)."""
    return _rate(failures - 1, runs, 1 - (1 - CONFIDENCE) / 2), _rate(failures, runs, (1 - CONFIDENCE) / 2)


def failure_bound(runs: int) -> float:
    """The rate of failures that `runs` runs without one exclude, with 95 % confidence."""
    return _rate(0, runs, 1 - CONFIDENCE)


def _rate(most: int, runs: int, probability: float) -> float:
    """The rate at which `most` failures or fewer in `runs` have this probability; by bisection."""
    if most < 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        chance = sum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(most + 1))
        low, high = (rate, high) if chance > probability else (low, rate)
    return (low + high) / 2


@dataclass(frozen=True)
class Assessment:
    """One figure over all runs against its upper limit."""

    values: tuple[float, ...]
    limit: float
    median: float
    interval: tuple[float, float]  # of the median
    tail: float
    within: bool  # the tail bound is
    more: int | None  # further runs that would settle it, if they scatter like these; `None`: no number would


def assess(values: Sequence[float], limit: float) -> Assessment:
    """`values`: at least one. A figure with a lower limit is assessed by its negative."""
    tail = tail_bound(values)
    within = tail <= limit
    return Assessment(
        values=tuple(values),
        limit=limit,
        median=float(np.median(values)),
        interval=median_interval(values),
        tail=tail,
        within=within,
        more=0 if within else _more(values, limit),
    )


def _more(values: Sequence[float], limit: float) -> int | None:
    """With so many further runs of the same mean and scatter the tail bound would come within the limit."""
    if len(values) < 2:
        return 2  # scatter is seen from two on, and bounded usefully from three
    logs = min(values) > 0
    if logs and limit <= 0:
        return None
    scale = [math.log(value) for value in values] if logs else list(values)
    room = (math.log(limit) if logs else limit) - statistics.fmean(scale)
    spread = statistics.stdev(scale)
    for runs in range(len(values) + 1, RUNS_MAX):
        if tolerance_factor(runs) * spread <= room:
            return runs - len(values)
    return None
