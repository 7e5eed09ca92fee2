"""People stopped no fault before its planned time was over, or before its effect was measured."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.faults import stopped, struck
from harness.units import format_duration


def _broken(evidence: Analysis) -> Iterator[str]:
    for fault in struck(evidence):
        if (after := stopped(evidence.work, fault)) is not None:
            planned = f"; its planned duration is {fault.lasts}" if fault.lasts else ", before its effect was measured"
            yield f"fault {fault.id} was stopped after {format_duration(after)}{planned}"


ASSUMPTION = Assumption(_broken, holds_for=("run",), family="fault")
