"""The last losses are not near zero, and vary too little to explain a gap to the fault-free run."""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils


def _scatter(evidence: Analysis, ground: Ground) -> str:
    comparison = evidence.comparison
    gap, scatter = (comparison.final_gap_percent, comparison.final_scatter_percent) if comparison else (None, 0.0)
    told = gap is not None and abs(gap) - scatter <= ground.bound
    return f"such gaps scatter by ± {scatter:.2g} % here: train longer, or allow a larger gap" if told else ""


def _near_zero(evidence: Analysis, ground: Ground) -> str:
    near = evidence.comparison is not None and evidence.comparison.near_zero
    return "the final loss is too close to zero for a gap in percent" if near else ""


BY_A_BAND = "Judge this loss by a band: loss_continuity: {mode: envelope}"
ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.GAP, _near_zero, BY_A_BAND, alone=True, either_way=True),
        Spoils(Kind.GAP, _scatter, "Give it more steps after the fault: workload: {steps: …}"),
    )
)
