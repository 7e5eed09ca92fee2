"""Finds where the typical value of a series of measurements changes.

Pettitt's test (1979) is used, which works for any distribution of the values, and with outliers. The test finds at most
one change, so the values before and after the change are tested again. A change is a hint to the user, not a
verdict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

P_MAX = 0.05
RATIO_MIN = 1.1  # least ratio of the medians of both sides
RUNS_MIN = 4  # least number of runs on each side
VALUES_MAX = 2000

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """A lasting change in a series of measurements. `at` is the index of the first value after the change. `before` is
    the median of the values since the previous change, and `after` is the median of the values until the next
    change."""

    at: int
    before: float
    after: float
    p: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else math.inf


def changes(values: Sequence[float]) -> list[Change]:
    """Returns all lasting changes among the newest `VALUES_MAX` values of a series, the earliest change first."""
    data = np.asarray(values[-VALUES_MAX:], float)
    edges = _placed(data, _split(data, 0))
    shift = len(values) - len(data)
    ends = [0, *(at for at, _ in edges), len(data)]
    medians = [float(np.median(data[a:b])) for a, b in itertools.pairwise(ends)] if len(data) else []
    return [Change(at + shift, medians[i], medians[i + 1], p) for i, (at, p) in enumerate(edges)]


def _split(data: Values, offset: int) -> list[tuple[int, float]]:
    if len(data) < 2 * RUNS_MIN:
        return []
    at, p = _pettitt(data)
    before, after = float(np.median(data[:at])), float(np.median(data[at:]))
    small = max(before, after) < RATIO_MIN * min(before, after)
    if p > P_MAX or small or min(at, len(data) - at) < RUNS_MIN:
        return []
    return [*_split(data[:at], offset), (at + offset, p), *_split(data[at:], offset + at)]


def _placed(data: Values, edges: list[tuple[int, float]]) -> list[tuple[int, float]]:
    ends = [0, *(at for at, _ in edges), len(data)]
    moved = []
    for before, at, after in zip(ends, ends[1:], ends[2:], strict=False):
        nearer = before + _pettitt(data[before:after])[0]
        moved.append(nearer if min(nearer - before, after - nearer) >= RUNS_MIN else at)
    kept = moved if moved == sorted(set(moved)) else ends[1:-1]
    return [(at, p) for at, (_, p) in zip(kept, edges, strict=True)]


def _pettitt(data: Values) -> tuple[int, float]:
    """Returns the most likely index of a change in `data`, and the p-value of the change (Pettitt 1979)."""
    count = len(data)
    ordered = np.sort(data)
    ranks = (np.searchsorted(ordered, data, "left") + np.searchsorted(ordered, data, "right") + 1) / 2
    reached = np.abs(2 * np.cumsum(ranks)[:-1] - np.arange(1, count) * (count + 1))
    at = int(reached.argmax())
    return at + 1, min(1.0, 2 * math.exp(-6 * float(reached[at]) ** 2 / (count**3 + count**2)))
