"""The longest time between two steps of one world while nothing disturbed the job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.judge.facts import by_time
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.usual import Times

STILL_LEAST_NS = 4 * 10**9  # a host may be busy for a moment: in healthy runs it was never longer than 0.6 s
STILL_FACTOR = 5  # of the longest time between two steps without a fault: a save, an evaluation


@dataclass(frozen=True)
class Standstill:
    """It lasted so long after a step, in ns, and at most `usual_ns` without a fault. Nothing explains it."""

    after: int
    ns: int
    usual_ns: int
    by: By = By.MISSING


def standstill(evidence: Analysis) -> Standstill | str | None:
    """`None`: none was too long. A text: why that is not known."""
    usual = max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)
    steps = Times.of(evidence.run)
    if usual is None or not len(steps.end):
        return "no fault-free run shows how long the job stands still by itself"
    apart = steps.end - steps.begin
    peace = by_time.quiet(steps.begin, steps.end, evidence.disturbed)
    longest = int(np.where(peace, apart, 0).argmax())
    if not peace[longest] or apart[longest] <= max(STILL_LEAST_NS, STILL_FACTOR * usual):
        return None
    return Standstill(int(steps.after[longest]), int(apart[longest]), usual)
