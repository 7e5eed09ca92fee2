"""Looks up values by key or by time without a scan of all values."""

import bisect
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")
NEVER = 2**62


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = {}
    for key, what in pairs:
        found.setdefault(key, []).append(what)
    return found


def first_from(moments: Sequence[int], since: int) -> int:
    """Returns the first time in the sorted list `moments` that is not before `since`, or `NEVER` if there is no such
    time."""
    place = bisect.bisect_left(moments, since)
    return moments[place] if place < len(moments) else NEVER


def last_by(told: Sequence[tuple[int, T]], moment: int) -> T | None:
    """Returns the newest value at or before `moment`, or `None`. `told` holds pairs (time, value) in order of time."""
    place = bisect.bisect_right(told, moment, key=operator.itemgetter(0))
    return told[place - 1][1] if place else None


class Moments(Generic[T]):
    def __init__(self, things: Iterable[tuple[int, T]]):
        self._things = sorted(things, key=lambda each: each[0])
        self._at = [at for at, _ in self._things]

    def within(self, first: int, last: int) -> Iterator[T]:
        low, high = bisect.bisect_left(self._at, first), bisect.bisect_right(self._at, last)
        return (self._things[place][1] for place in range(low, high))


class Spans(Generic[T]):
    """An index of items by time span, made from triples (begin, end, item)."""

    def __init__(self, things: Iterable[tuple[int, int, T]]):
        self._things = sorted(things, key=lambda each: each[1])
        self._ends = [end for _, end, _ in self._things]
        begins = itertools.accumulate((begin for begin, _, _ in reversed(self._things)), min)
        self._earliest = list(begins)[::-1]  # earliest begin of this thing and all that end later

    def at(self, moment: int) -> Iterator[T]:
        for place in range(bisect.bisect_left(self._ends, moment), len(self._things)):
            if self._earliest[place] > moment:
                return
            begin, _, what = self._things[place]
            if begin <= moment:
                yield what


class Located(Generic[K, T]):
    """An index of items by place and time span, made from tuples (node, rank on the node, begin, end, item)."""

    def __init__(self, things: Iterable[tuple[K, int | None, int, int, T]]):
        found: dict[K, dict[int | None, list[tuple[int, int, T]]]] = {}
        for node, rank, begin, end, what in things:
            found.setdefault(node, {}).setdefault(rank, []).append((begin, end, what))
        self._spans = {node: {rank: Spans(each) for rank, each in there.items()} for node, there in found.items()}

    def at(self, node: K, rank: int | None, moment: int) -> Iterator[T]:
        """Yields each item of this rank (`None`: of any rank on the node) whose time span includes `moment`."""
        ranks = self._spans.get(node, {})
        for each in ranks if rank is None else ranks.keys() & {rank}:
            yield from ranks[each].at(moment)
