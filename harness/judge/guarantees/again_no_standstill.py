"""The job never stands still for much longer than without a fault while no fault is at work.

The time between two steps is too long if it exceeds 4 s and 5 times the longest time in any fault-free run. After a
fault changed the job's work, the longest time in any fault-free run is increased by the time of a median step since the
change.
"""

import numpy as np

from harness.evidence import by_time
from harness.evidence.usual import Times
from harness.judge.facts import tellers
from harness.judge.guarantee import DRILL, RUN, Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import STILL_FACTOR, STILL_LEAST_NS
from harness.units import format_duration


def breaches(evidence: Analysis) -> Breaches:
    steps, usual = Times.of(evidence.run), _longest_usual(evidence)
    apart = np.where(by_time.quiet(steps.begin, steps.end, evidence.disturbed), steps.end - steps.begin, 0)
    if usual is None or not len(apart):
        return
    later = steps.begin >= evidence.run.work_changed_at
    own = float(np.median(steps.taken[later])) if later.any() else 0.0
    times = apart / np.maximum(STILL_LEAST_NS, STILL_FACTOR * (usual + own * later))
    longest = int(times.argmax())
    if times[longest] > 1:
        text = f"the job stood still for {format_duration(int(apart[longest]))} after step {steps.after[longest]}"
        text += f", while no fault was at work (at most {format_duration(usual)} in the fault-free run)"
        yield breach(text, tellers.STANDSTILL)


def _longest_usual(evidence: Analysis) -> int | None:
    return max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)


def nothing(evidence: Analysis) -> str:
    shown = _longest_usual(evidence) is not None and len(Times.of(evidence.run).end)
    return "" if shown else "no fault-free run shows how long the job stands still by itself"


GUARANTEE = Guarantee(breaches, holds_for=(RUN, DRILL), nothing=nothing)
