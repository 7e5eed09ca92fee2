"""The run can be compared with its fault-free runs, and those did what they were asked."""

from __future__ import annotations

from harness.judge.assumption import FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _incomparable(evidence: Analysis, ground: Ground) -> str:
    return evidence.incomparable


def _resumed_elsewhere(evidence: Analysis, ground: Ground) -> str:
    return evidence.resumed_elsewhere


ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.CURVES, _incomparable, FRESH, alone=True, either_way=True),
        Spoils(Kind.BAND, _resumed_elsewhere, FRESH, alone=True, either_way=True),
    ),
    order=1,
)
