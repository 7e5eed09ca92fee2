"""Measures how far another host's wall clock is ahead of ours, over a connection of unknown delay.

F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989): the other clock was read between
question and reply. So the offset is off by at most half of the time between them, whatever the delays. The quickest of
several answers is the most certain.
"""

import time
from collections.abc import Callable

from harness.backends.contract import ClockReading

TRIES = 8


def compare(
    host: str, ask: Callable[[], int], tries: int = TRIES, now_ns: Callable[[], int] = time.time_ns
) -> ClockReading:
    """Returns another host's clock offset with its uncertainty. `ask` returns the host's wall clock in ns."""

    def reading() -> ClockReading:
        before = now_ns()
        theirs = ask()
        after = now_ns()
        return ClockReading(host, theirs - (before + after) // 2, (after - before + 1) // 2 + 1)

    return min((reading() for _ in range(tries)), key=lambda each: each.uncertainty_ns)
