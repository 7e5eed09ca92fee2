"""Each fault strikes while the job has work left."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.strikes import NoTimeLeft, too_late
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in too_late(evidence):
        if isinstance(each, NoTimeLeft):
            left = format_duration(each.left_ns)
            yield of_fault(f"struck {left} before the end of the last step: too late to have an effect", each)
        else:
            yield of_fault("struck after the job had done all its work", each)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
