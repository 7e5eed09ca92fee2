"""The last losses scatter by less than the gap that is allowed."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _scatter(evidence: Analysis, ground: Ground) -> str:
    comparison = evidence.comparison
    gap, scatter = (comparison.final_gap_percent, comparison.final_scatter_percent) if comparison else (None, 0.0)
    told = gap is not None and abs(gap) - scatter <= ground.bound
    return f"such gaps scatter by ± {scatter:.2g} % here: train longer, or allow a larger gap" if told else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.GAP, _scatter, "Give it more steps after the fault: workload: {steps: …}"),)
)
