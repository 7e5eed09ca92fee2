"""The trainer computes the same values in every run, or values within the spread of its fault-free runs.

If losses differ from the fault-free run's before any fault strikes, and in nearly all steps from then on, the trainer
is not deterministic. If losses leave the tolerance interval before any fault, the interval is too narrow. If values
differ from the fault-free run's before the first fault, or if too few steps precede the first fault, later differences
prove no error.
"""

import numpy as np

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.thresholds import CALIBRATING_STEPS
from harness.timeline.sorted_events import first_strike


def _differs_early(evidence: Analysis, ground: Ground) -> str:
    run, compared = evidence.run, evidence.comparison
    before = run.steps.step[run.steps.survives & (run.steps.end < first_strike(run.faults))]
    if compared is None:
        return ""
    if (first := compared.first_divergent_step) is not None and first in before:
        return f"step {first} differs from the fault-free run before any fault struck"
    few = np.isin(compared.step, before).sum() < CALIBRATING_STEPS
    return "too few steps before the first fault show whether each run computes the same" if few else ""


BY_A_BAND = "Its losses differ without a fault: loss_continuity: {mode: envelope}"
BY_THE_END = "Its losses scatter more than the band is wide: loss_continuity: {mode: final}"
ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.BITS, lambda evidence, _: evidence.never_the_same, BY_A_BAND, alone=True),
        Spoils(Kind.COURSE, _differs_early, BY_A_BAND),
        Spoils(Kind.BAND, lambda evidence, _: evidence.left_band_early, BY_THE_END),
    )
)
