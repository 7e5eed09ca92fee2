"""The job never stands still for much longer than without a fault while no fault is at work.

The limit is 4 s between two steps, and 5 times as long as the fault-free run ever stood.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.standstill import standstill
from harness.judge.guarantee import DRILL, RUN, Breach, Guarantee, breach
from harness.judge.thresholds import STILL_FACTOR, STILL_LEAST_NS
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    longest = standstill(evidence)
    if longest is not None and longest.ns > max(STILL_LEAST_NS, STILL_FACTOR * longest.usual_ns):
        text = f"the job stood still for {format_duration(longest.ns)} after step {longest.after}"
        text += f", while no fault was at work (at most {format_duration(longest.usual_ns)} in the fault-free run)"
        yield breach(text, longest)


def nothing(evidence: Analysis) -> str:
    return "" if standstill(evidence) else "no fault-free run shows how long the job stands still by itself"


GUARANTEE = Guarantee(breaches, holds_for=(RUN, DRILL), nothing=nothing)
