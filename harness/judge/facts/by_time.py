"""Things found by when they were, without a look at all the others."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Moments(Generic[T]):
    """Things that happened at a moment: (when, what)."""

    def __init__(self, things: Iterable[tuple[int, T]]):
        self._things = sorted(things, key=lambda each: each[0])
        self._at = [at for at, _ in self._things]

    def within(self, first: int, last: int) -> Iterator[T]:
        """Those from `first` to `last`, both included, in order of time."""
        low, high = bisect.bisect_left(self._at, first), bisect.bisect_right(self._at, last)
        return (self._things[place][1] for place in range(low, high))


class Spans(Generic[T]):
    """Things that lasted: (from when, until when, what)."""

    def __init__(self, things: Iterable[tuple[int, int, T]]):
        self._things = sorted(things, key=lambda each: each[1])
        self._ends = [end for _, end, _ in self._things]
        begins = itertools.accumulate((begin for begin, _, _ in reversed(self._things)), min)
        self._earliest = list(begins)[::-1]  # begin of this one and of all that end later

    def at(self, moment: int) -> Iterator[T]:
        """Those that had begun by then and were not over, in the order in which they ended."""
        for place in range(bisect.bisect_left(self._ends, moment), len(self._things)):
            if self._earliest[place] > moment:
                return
            begin, _, what = self._things[place]
            if begin <= moment:
                yield what
