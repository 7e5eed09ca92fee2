"""The ranks of one step beside each other: the weights that they computed with, and their samples of the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.timeline.lineage import cells
from harness.timeline.timeline import Bools, Ints, Steps


@dataclass(frozen=True)
class Apart:
    """A step at which ranks of one world computed with different weights."""

    step: int
    ranks: tuple[int, ...]  # those outvoted; where there is no majority, all
    outvoted: bool
    begin: int  # ns
    survives: bool

    def __str__(self) -> str:
        who = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {', '.join(map(str, self.ranks))}"
        verb = "computed" if self.outvoted else "each computed"
        return f"at step {self.step} {who} {verb} with other weights{' than the majority' if self.outvoted else ''}"


def weights_apart(steps: Steps) -> tuple[int, list[Apart]]:
    """How many steps tell a digest of the weights of several ranks, and those where they differ, in order of time."""
    rows = np.flatnonzero(steps.weights != 0)
    if not len(rows):
        return 0, []
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    first = np.full(count, -1)
    first[cell[::-1]] = rows[::-1]
    several = int((np.bincount(cell, minlength=count) > 1).sum())
    differ = np.bincount(cell[steps.weights[rows] != steps.weights[first[cell]]], minlength=count) > 0
    odd = np.flatnonzero(differ[cell])
    odd = odd[np.argsort(cell[odd], kind="stable")]
    groups = np.split(rows[odd], np.flatnonzero(np.diff(cell[odd])) + 1) if len(odd) else []
    return several, sorted((_apart(steps, group) for group in groups), key=lambda each: each.begin)


def _apart(steps: Steps, rows: Ints) -> Apart:
    digests = dict(zip(steps.rank[rows].tolist(), steps.weights[rows].tolist(), strict=True))
    usual, votes = Counter(digests.values()).most_common(1)[0]
    outvoted = votes > len(digests) / 2
    ranks = sorted(rank for rank, each in digests.items() if not outvoted or each != usual)
    begin, survives = int(steps.begin[rows].min()), bool(steps.survives[rows].any())
    return Apart(int(steps.step[rows[0]]), tuple(ranks), outvoted, begin, survives)


class Digests:
    """Who told a digest of its weights, and when; by rank."""

    def __init__(self, steps: Steps):
        self._steps = steps

    @cached_property
    def _by_rank(self) -> tuple[Ints, Ints, Ints]:
        """Rows rank by rank, in order of time; the rank and the end of each."""
        rows = np.argsort(self._steps.rank, kind="stable")
        return rows, self._steps.rank[rows], self._steps.end[rows]

    @cached_property
    def _told(self) -> dict[tuple[int, int], Ints]:
        """Rows that tell a digest, in order of time, by rank and epoch."""
        rows = np.flatnonzero(self._steps.weights != 0)
        cell, _ = cells(self._steps.rank[rows], self._steps.epoch[rows])
        rows = rows[np.argsort(cell, kind="stable")]
        places = np.flatnonzero(np.diff(np.sort(cell))) + 1
        groups = np.split(rows, places) if len(rows) else []
        return {(int(self._steps.rank[each[0]]), int(self._steps.epoch[each[0]])): each for each in groups}

    def checked_after(self, rank: int, at: int) -> int | None:
        """The first step, begun after this moment and before the rank restored anything, that tells its digest."""
        rows, ranks, ends = self._by_rank
        low, high = (int(np.searchsorted(ranks, rank, side=side)) for side in ("left", "right"))
        first = self._first(rows[low:high], ends[low:high], at)
        if first is None:
            return None
        told = self._told.get((rank, int(self._steps.epoch[first])), rows[:0])
        found = self._first(told, self._steps.end[told], at)
        return None if found is None else int(self._steps.step[found])

    def _first(self, rows: Ints, ends: Ints, at: int) -> int | None:
        """Of these rows the first one that began after this moment. Who begins later ends later."""
        for place in range(int(np.searchsorted(ends, at, side="right")), len(rows)):
            if self._steps.begin[rows[place]] > at:
                return int(rows[place])
        return None


@dataclass(frozen=True)
class Short:
    """A surviving step whose ranks did not compute with as many different samples as its batch has."""

    step: int
    rank: int  # the one with the fewest; the lowest of several
    had: int
    got: int  # by all ranks together
    asked: int  # samples of the batch
    begin: int  # ns

    def __str__(self) -> str:
        who = f"at step {self.step} rank {self.rank} computed with {self.had} different samples"
        return f"{who}, and all ranks together with {self.got} of the batch's {self.asked}"


def tells_samples(steps: Steps) -> Bools:
    return np.asarray((steps.rank_samples >= 0) & (steps.count >= 0), np.bool_)


def samples_counted(steps: Steps) -> Ints:
    """Rows of surviving steps that all ranks did, and of which all ranks tell their samples and those of the batch."""
    rows = np.flatnonzero(steps.survives & steps.complete)
    told = tells_samples(steps)[rows]
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    untold = np.bincount(cell[~told], minlength=count) > 0
    return rows[~untold[cell]]


def samples_short(steps: Steps, rows: Ints) -> list[Short]:
    """In the order of steps."""
    cell, count = cells(steps.epoch[rows], steps.step[rows])
    asked, got = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(asked, cell, steps.count[rows])
    np.add.at(got, cell, steps.rank_samples[rows])
    wrong = np.flatnonzero((asked != got)[cell])
    few = rows[wrong]
    order = np.lexsort((steps.rank[few], steps.rank_samples[few], steps.step[few]))
    _, first = np.unique(steps.step[few[order]], return_index=True)  # of each step the rank with the fewest
    chosen = wrong[order[first]]
    row = rows[chosen]
    columns = (steps.step[row], steps.rank[row], steps.rank_samples[row], got[cell[chosen]], asked[cell[chosen]])
    return [Short(*each) for each in zip(*(column.tolist() for column in (*columns, steps.begin[row])), strict=True)]
