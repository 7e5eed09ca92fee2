"""The trainer computes the same values in every run, or values within the spread of its fault-free runs.

If losses differ from the fault-free run's before any fault strikes, and in nearly all steps from then on, the trainer
is not deterministic. If losses leave the tolerance interval before any fault strikes, this interval is too narrow.
"""

from harness.judge.assumption import Assumption, Kind, Spoils

BY_A_BAND = "Its losses differ without a fault: loss_continuity: {mode: envelope}"
BY_THE_END = "Its losses scatter more than the band is wide: loss_continuity: {mode: final}"
ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.BITS, lambda evidence, _: evidence.never_the_same, BY_A_BAND, alone=True),
        Spoils(Kind.BAND, lambda evidence, _: evidence.left_band_early, BY_THE_END),
    )
)
