"""The job never stands still for much longer than without a fault while no fault is at work."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.standstill import Standstill, standstill
from harness.judge.guarantee import DRILL, RUN, Breach, Guarantee, breach
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    found = standstill(evidence)
    if isinstance(found, Standstill):
        text = (
            f"the job stood still for {format_duration(found.ns)} after step {found.after}, while no fault was at work"
        )
        yield breach(f"{text} (at most {format_duration(found.usual_ns)} in the fault-free run)", found)


def nothing(evidence: Analysis) -> str:
    found = standstill(evidence)
    return found if isinstance(found, str) else ""


GUARANTEE = Guarantee(breaches, holds_for=(RUN, DRILL), nothing=nothing)
