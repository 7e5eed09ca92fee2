"""The longest time between two steps of one world while nothing disturbed the job."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.judge.facts import by_time, tellers
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.usual import Times


class Standstill(NamedTuple):
    """A standstill of `ns` after a step. `usual_ns`: the longest fault-free one."""

    after: int
    ns: int
    usual_ns: int
    by: By = tellers.STANDSTILL


def standstill(evidence: Analysis) -> Standstill | None:
    """Returns the longest standstill; `None` if no fault-free run shows a usual one, or no two steps are told."""
    usual = max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)
    steps = Times.of(evidence.run)
    apart = np.where(by_time.quiet(steps.begin, steps.end, evidence.disturbed), steps.end - steps.begin, 0)
    if usual is None or not len(apart):
        return None
    longest = int(apart.argmax())
    return Standstill(int(steps.after[longest]), int(apart[longest]), usual)
