"""Each fault acts for its planned time, and is undone then.

It may end sooner where the job gets rid of its victim or is over, or where people stop it.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_times import never_undone, over_before, undone_early, undone_late
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for never in never_undone(evidence):
        yield of_fault(f"was never undone; its planned duration is {never.lasts}", never)
    for late in undone_late(evidence):
        yield of_fault(f"was undone {format_duration(late.late_ns)} after its planned duration, {late.lasts}", late)
    for early in undone_early(evidence):
        lasted = format_duration(early.after_ns)
        yield of_fault(f"was undone after {lasted}; its planned duration is {early.lasts}", early)
    for before in over_before(evidence):
        what = "undone" if before.undone else "recovered from"
        yield of_fault(f"was {what} {format_duration(before.early_ns)} before it acted", before)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
