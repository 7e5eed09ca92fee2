"""What launchers tell can be, beside what their workers and each other tell."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts import launchers
from harness.judge.facts.analysis import Analysis


def _broken(evidence: Analysis) -> Iterator[str]:
    return launchers.contradictions(evidence.run, evidence.fault_free_runs)


ASSUMPTION = Assumption(_broken, family="job")
