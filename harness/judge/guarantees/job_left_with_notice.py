"""No node leaves the job unless it was taken or had a notice."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.job_end import left_without_notice
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in left_without_notice(evidence.run, evidence.places):
        at = format_duration(each.at - evidence.run.begin)
        yield breach(f"{each.node} left the job with exit code {each.code} at {at}, without a notice", each)


GUARANTEE = Guarantee(breaches, needs_steps=False)
