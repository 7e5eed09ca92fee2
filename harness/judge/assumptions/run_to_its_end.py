"""Nobody stopped the run while something was still measured."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Figure, Ground, Kind
from harness.units import format_duration


def _cut_short(evidence: Analysis, ground: Ground) -> str:
    """A run that was stopped early cannot say that recovery would have taken longer than it was given."""
    if not isinstance(ground.of, Figure) or ground.of.is_over or ground.of.value > ground.bound:
        return ""
    taken = format_duration(round(ground.of.value))
    return f"the run ended {taken} into the recovery" if evidence.run.outcome in (None, "interrupted") else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(
            Kind.DURATION, _cut_short, "Let it run to its end, or give it longer: abort: {wall_clock: …}", alone=True
        ),
    ),
    order=5,
)
