"""Finds where a series of figures changes its level. Pure.

Pettitt's test (1979) compares only the order of values, so the distribution and one disturbed run do not matter. The
test finds one change; the parts before and after this change are then searched, too. A change is a hint, not a verdict.
"""

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
    """A change of a figure's level. `at`: index of the first later value. `before`, `after`: medians of both levels."""

    at: int
    before: float
    after: float
    p: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else math.inf


def changes(values: Sequence[float]) -> list[Change]:
    """Returns all changes of level among the newest `VALUES_MAX` values of a series, the earliest change first."""
    data = np.asarray(values[-VALUES_MAX:], float)
    edges = _placed(data, _split(data, 0))
    shift = len(values) - len(data)
    ends = [0, *(at for at, _ in edges), len(data)]
    medians = [float(np.median(data[a:b])) for a, b in itertools.pairwise(ends)] if len(data) else []
    return [Change(at + shift, medians[i], medians[i + 1], p) for i, (at, p) in enumerate(edges)]


def _split(data: Values, offset: int) -> list[tuple[int, float]]:
    """Returns the index of each change in this part of the series, and the probability that chance alone causes it."""
    if len(data) < 2 * RUNS_MIN:
        return []
    at, p = _pettitt(data)
    before, after = float(np.median(data[:at])), float(np.median(data[at:]))
    small = max(before, after) < RATIO_MIN * min(before, after)
    if p > P_MAX or small or min(at, len(data) - at) < RUNS_MIN:
        return []
    return [*_split(data[:at], offset), (at + offset, p), *_split(data[at:], offset + at)]


def _placed(data: Values, edges: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Finds the place of each change again, using only the values between the neighbouring changes."""
    ends = [0, *(at for at, _ in edges), len(data)]
    moved = []
    for before, at, after in zip(ends, ends[1:], ends[2:], strict=False):
        nearer = before + _pettitt(data[before:after])[0]
        moved.append(nearer if min(nearer - before, after - nearer) >= RUNS_MIN else at)
    kept = moved if moved == sorted(set(moved)) else ends[1:-1]
    return [(at, p) for at, (_, p) in zip(kept, edges, strict=True)]


def _pettitt(data: Values) -> tuple[int, float]:
    """Returns the likeliest index of a change, and the probability of an equally clear change by chance alone."""
    count = len(data)
    ordered = np.sort(data)
    ranks = (np.searchsorted(ordered, data, "left") + np.searchsorted(ordered, data, "right") + 1) / 2
    reached = np.abs(2 * np.cumsum(ranks)[:-1] - np.arange(1, count) * (count + 1))
    at = int(reached.argmax())
    return at + 1, min(1.0, 2 * math.exp(-6 * float(reached[at]) ** 2 / (count**3 + count**2)))
