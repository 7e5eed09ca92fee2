"""Looks up values by key or by time without a scan of all values."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")
NEVER = 2**62


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = {}
    for key, what in pairs:
        found.setdefault(key, []).append(what)
    return found


def first_from(moments: Sequence[int], since: int) -> int:
    """Returns the first of these sorted times that is not before `since`, or `NEVER` if there is no such time."""
    place = bisect.bisect_left(moments, since)
    return moments[place] if place < len(moments) else NEVER


def last_by(told: Sequence[tuple[int, T]], moment: int) -> T | None:
    """Returns the newest value at or before `moment`, or `None`. `told` holds pairs (time, value) in order of time."""
    place = bisect.bisect_right(told, moment, key=operator.itemgetter(0))
    return told[place - 1][1] if place else None
