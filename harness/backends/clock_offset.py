"""Measures how far another host's wall clock is ahead of this host's, over a connection of unknown delay.

The method is from Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989). The other host reads
its clock at some moment between question and reply, so that the error of the offset is at most half of the time between
question and reply. Of several measurements, the one with the quickest reply has the smallest error.
"""

import time
from collections.abc import Callable

from harness.backends.contract import ClockReading

TRIES = 8


def compare(
    host: str, ask: Callable[[], int], tries: int = TRIES, now_ns: Callable[[], int] = time.time_ns
) -> ClockReading:
    """Returns the offset of another host's wall clock from this host's wall clock, with the offset's uncertainty. The
    function `ask` returns the host's wall clock in ns."""

    def reading() -> ClockReading:
        before = now_ns()
        theirs = ask()
        after = now_ns()
        return ClockReading(host, theirs - (before + after) // 2, (after - before + 1) // 2 + 1)

    return min((reading() for _ in range(tries)), key=lambda each: each.uncertainty_ns)
