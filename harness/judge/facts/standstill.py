"""The longest time between two steps of one world while nothing disturbed the job."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.judge.facts import by_time, tellers
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.usual import Times


class Standstill(NamedTuple):
    """A standstill of `ns` after a step. `usual_ns`: the longest fault-free one; `None`: no fault-free run shows it."""

    after: int
    ns: int
    usual_ns: int | None
    by: By = tellers.STANDSTILL


def standstill(evidence: Analysis) -> Standstill:
    usual = max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)
    steps = Times.of(evidence.run)
    apart = np.where(by_time.quiet(steps.begin, steps.end, evidence.disturbed), steps.end - steps.begin, 0)
    if not len(apart):
        return Standstill(0, 0, None)
    longest = int(apart.argmax())
    return Standstill(int(steps.after[longest]), int(apart[longest]), usual)
