"""Tests with few runs whether a schedule of faults fails often or rarely, by Wald's sequential probability ratio test.

See Wald, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical Statistics 16 (1945), 117-186. The test
compares a high and a low failure rate. Each failed run raises the logarithm of the likelihood ratio of the two rates,
and each passed run lowers this logarithm. The test ends when the logarithm reaches an upper or a lower bound, or after
`REPEATS_MAX` runs. The probability of each of the two wrong decisions is at most about `ERROR`.
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
    """Decides with few runs whether the failure rate of a schedule of faults is at least `high`, or at most `low`."""

    low: float = CHANCE
    high: float = RARELY
    failed: int = 0
    passed: int = 0

    def hear(self, failed: bool) -> None:
        self.failed += failed
        self.passed += not failed

    @property
    def repeats(self) -> int:
        return self.failed + self.passed

    @property
    def answer(self) -> bool | None:
        """Returns True if the failure rate is high, False if it is low, and `None` if the runs do not yet decide."""
        ratio = self.failed * math.log(self.high / self.low)
        ratio += self.passed * math.log((1 - self.high) / (1 - self.low))
        return True if ratio >= BOUND else False if ratio <= -BOUND else None

    @property
    def over(self) -> bool:
        return self.answer is not None or self.repeats >= REPEATS_MAX


def at_the_rate_of(test: SequentialTest) -> SequentialTest:
    """Returns a test that compares the failure rate of another schedule of faults with the rate measured by `test`."""
    high = min(RATE_MAX, (test.failed + 1) / (test.repeats + 2))
    return SequentialTest(high / APART, high)
