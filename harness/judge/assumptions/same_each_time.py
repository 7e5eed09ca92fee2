"""The trainer computes the very same in every run, or as near to it as its fault-free runs show.

Losses that differ from the fault-free run's before any fault struck, and go on to differ, show a trainer that is not
deterministic. So do losses and gradient norms that never change.
"""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _differs_before_any_fault(evidence: Analysis, ground: Ground) -> str:
    return evidence.never_the_same


def _leaves_the_band_before_any_fault(evidence: Analysis, ground: Ground) -> str:
    return evidence.left_band_early


ASSUMPTION = Assumption(
    spoils=(
        Spoils(
            Kind.BITS,
            _differs_before_any_fault,
            "Its losses differ without a fault: loss_continuity: {mode: envelope}",
            alone=True,
        ),
        Spoils(
            Kind.BAND,
            _leaves_the_band_before_any_fault,
            "Its losses scatter more than the band is wide: loss_continuity: {mode: final}",
        ),
    ),
)
