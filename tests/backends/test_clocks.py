"""Offsets of other hosts' clocks: the truth is always within what a reading claims to know."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from harness.backends import clocks

delays = st.integers(0, 10**9)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(delays, delays), min_size=1, max_size=9))
def test_the_true_offset_is_within_the_uncertainty(offset_ns: int, trips: list[tuple[int, int]]) -> None:
    """Whatever each way takes: a delay that is all on one side misleads by exactly half of it."""
    now = [10**18]
    ways = itertools.chain.from_iterable(trips)

    def ask() -> int:
        now[0] += next(ways)
        theirs = now[0] + offset_ns
        now[0] += next(ways)
        return theirs

    reading = clocks.compare("far", ask, len(trips), lambda: now[0])
    assert abs(reading.offset_ns - offset_ns) <= reading.uncertainty_ns
    assert reading.uncertainty_ns <= min(there + back for there, back in trips) // 2 + 2
    assert reading.host == "far"


def test_our_own_clock_is_not_off() -> None:
    import time

    reading = clocks.compare("here", time.time_ns)
    assert abs(reading.offset_ns) <= reading.uncertainty_ns < 10**8
