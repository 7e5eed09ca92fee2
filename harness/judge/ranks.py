"""Do the ranks of one step agree, and does each rank go on as the same rank of the fault-free run did?

Some trainers tell figures of the whole job on every rank, some tell each rank's own. Which it is, the fault-free run
says: a figure on which its ranks disagree in most steps is local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Floats, Ints, Steps

LOCAL_SHARE = 0.5  # of the steps in which several ranks tell a figure: so often they disagree on one of their own
HOLES_MAX = 1  # steps in which a figure may be left out more often than in the fault-free run
Column = npt.NDArray[np.int64]


def bits(values: Floats) -> Column:
    """Comparable bit patterns; all NaNs are the same one."""
    return np.ascontiguousarray(np.where(np.isnan(values), np.nan, values)).view(np.int64)


def _finite(values: Floats) -> tuple[Column, Bools]:
    return bits(values), np.isfinite(values)


# Per figure: its column in comparable integers, and where it is told at all.
FIGURES: Mapping[str, Callable[[Steps], tuple[Column, Bools]]] = {
    "samples": lambda steps: (steps.digest, steps.digest != 0),
    "sample positions": lambda steps: (steps.first * 2**20 + steps.count, (steps.first >= 0) & (steps.count >= 0)),
    "loss": lambda steps: _finite(steps.loss),
    "gradient norm": lambda steps: _finite(steps.grad_norm),
    "learning rate": lambda steps: _finite(steps.lr),
}


def disagreements(run: Steps, usual: Steps | None) -> Iterator[tuple[str, int, str]]:
    """Figures of the whole job on which the ranks of one surviving step differ: (figure, first step, two ranks)."""
    rows = np.flatnonzero(run.survives & run.complete)
    cell, _ = cells(run.step[rows])
    for name, figure in FIGURES.items():
        values, told = figure(run)
        part = told[rows]
        if not part.any():
            continue
        if not part.all():
            part |= np.isin(run.rank[rows], _silent(run, usual, name))
        pair = _first_split(rows[part], cell[part], values)
        if pair is not None and not (usual is not None and is_local(usual, name)):
            one, other = sorted(str(run.rank[row]) for row in pair)
            yield name, int(run.step[pair[0]]), f"{one} and {other}"


def _first_split(rows: Ints, cell: Ints, values: Column) -> tuple[int, int] | None:
    """The first two rows of one cell whose values differ."""
    if not len(rows):
        return None
    first = np.full(int(cell.max()) + 1, -1)
    first[cell[::-1]] = rows[::-1]
    bad = np.flatnonzero(values[rows] != values[first[cell]])
    return (int(rows[bad[0]]), int(first[cell[bad[0]]])) if len(bad) else None


def _silent(run: Steps, usual: Steps | None, name: str) -> Ints:
    """Of the ranks that tell a figure those that leave it out in more steps than they do without a fault, and more than
    once: then it is no hole in what they tell, but no number."""
    speaks = _ranks_telling(usual if usual is not None else run, name)
    holes = _holes(run, name, speaks)
    before = _holes(usual, name, speaks) if usual is not None else np.zeros(len(speaks), np.int64)
    return speaks[holes > before + HOLES_MAX]


def _holes(steps: Steps, name: str, speaks: Ints) -> Ints:
    _, told = FIGURES[name](steps)
    silent = np.sort(steps.rank[steps.survives & steps.complete & ~told])
    return np.searchsorted(silent, speaks, side="right") - np.searchsorted(silent, speaks)


def _ranks_telling(steps: Steps, name: str) -> Ints:
    _, told = FIGURES[name](steps)
    ranks = steps.rank[told]
    if len(ranks) and 0 <= ranks.min() and ranks.max() < len(ranks) + 1000:
        return np.flatnonzero(np.bincount(ranks))  # without sorting millions of rows
    return np.unique(ranks)


def is_local(usual: Steps, name: str) -> bool:
    """Whether the ranks of a fault-free run disagree on it in most of the steps that several of them tell."""
    values, told = FIGURES[name](usual)
    rows = np.flatnonzero(usual.survives & usual.complete & told)
    if not len(rows):
        return False
    cell, count = cells(usual.step[rows])
    size = np.bincount(cell, minlength=count)
    first = np.full(count, -1)
    first[cell[::-1]] = rows[::-1]
    differ = np.zeros(count, np.bool_)
    differ[cell[values[rows] != values[first[cell]]]] = True
    several = int((size > 1).sum())
    return bool(several and differ.sum() >= LOCAL_SHARE * several)


def strays(run: Steps, usual: Steps, width: Callable[[Floats], Floats]) -> Iterator[tuple[str, int, int]]:
    """Local figures of a rank, but the lowest one, that are not the same rank's of the fault-free run: (figure, first
    step, rank). `width` gives from the fault-free values how far off each may be."""
    for name, column in (("loss", "loss"), ("gradient norm", "grad_norm")):
        if not is_local(usual, name):
            continue
        mine, theirs = (_by_rank_and_step(steps, getattr(steps, column)) for steps in (run, usual))
        _, left, right = np.intersect1d(mine[0], theirs[0], assume_unique=True, return_indices=True)
        rows, ours, other = mine[1][left], mine[2][left], theirs[2][right]
        lowest = run.rank[rows] == run.rank[rows].min(initial=np.iinfo(np.int64).max)  # the curve itself is of that one
        with np.errstate(invalid="ignore"):
            near = (bits(ours) == bits(other)) | (np.abs(ours - other) <= width(other)) | np.isnan(other)
        bad = rows[~near & ~lowest]
        if len(bad):
            first = bad[np.argmin(run.step[bad])]
            yield name, int(run.step[first]), int(run.rank[first])


def _by_rank_and_step(steps: Steps, values: Floats) -> tuple[Ints, Ints, Floats]:
    """(rank and step as one number, row, value), each pair once: the last row of it."""
    rows = np.flatnonzero(steps.survives & steps.complete)[::-1]
    _, first = np.unique(steps.rank[rows] * 2**40 + steps.step[rows], return_index=True)
    chosen = rows[first]
    return steps.rank[chosen] * 2**40 + steps.step[chosen], chosen, values[chosen]
