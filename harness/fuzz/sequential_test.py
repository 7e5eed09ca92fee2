"""Wald's sequential probability ratio test of a failure rate: it stops as soon as the repeats say enough.

A. Wald, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics 16 (1945), 117-186. After each
repeat, the logarithm of the likelihood ratio of the two rates moves up (failed) or down. At a bound, the test ends.
Each of the two errors has at most about the probability `ERROR`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ERROR = 0.05  # probability of each wrong answer
BOUND = math.log((1 - ERROR) / ERROR)
REPEATS_MAX = 20
CHANCE, RARELY = 0.1, 0.6  # rates that a first failure is tested between: a rare accident, or repeatable
APART = 6.0  # factor between the rates that a smaller schedule is tested between
RATE_MAX = 0.9


@dataclass
class SequentialTest:
    """Decides whether a schedule fails often (rate `high` or more) or seldom (`low` or less), from as few runs as
    possible."""

    low: float = CHANCE
    high: float = RARELY
    failed: int = 0
    passed: int = 0

    def hear(self, failed: bool) -> None:
        """Adds the result of one more run to the test."""
        self.failed += failed
        self.passed += not failed

    @property
    def repeats(self) -> int:
        return self.failed + self.passed

    @property
    def answer(self) -> bool | None:
        """Returns True if the failure rate is high, False if it is low, and `None` while more runs are needed."""
        ratio = self.failed * math.log(self.high / self.low)
        ratio += self.passed * math.log((1 - self.high) / (1 - self.low))
        return True if ratio >= BOUND else False if ratio <= -BOUND else None

    @property
    def over(self) -> bool:
        return self.answer is not None or self.repeats >= REPEATS_MAX


def at_the_rate_of(test: SequentialTest) -> SequentialTest:
    """Returns a test of whether another schedule fails about as often as the one that `test` has tested."""
    high = min(RATE_MAX, (test.failed + 1) / (test.repeats + 2))
    return SequentialTest(high / APART, high)
