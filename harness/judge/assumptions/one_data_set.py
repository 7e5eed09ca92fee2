"""The data set has the same size in all processes and runs, and each run consumes it in the same order.

Unless logs show that each run consumes samples in the same order, different samples are no proof of an error.
"""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.timeline.lineage import NEVER

NAMED_SIZES = 5


def _broken(evidence: Analysis) -> Reasons:
    run, fault_free = evidence.run, evidence.fault_free
    sizes = sorted({*run.data_sizes, *(fault_free.data_sizes if fault_free else ())})
    if len(sizes) > 1:
        told = ", ".join(f"{size:,}" for size in sizes[:NAMED_SIZES])
        yield f"the number of samples in the data is not the same everywhere: {told}"


def _order_unproven(evidence: Analysis, ground: Ground) -> str:
    unproven = evidence.consumed is not None and evidence.consumed.unproven
    return "nothing shows that the order is the same in every run" if unproven else ""


def _other_samples(evidence: Analysis, ground: Ground) -> str:
    bounds, compared = evidence.continuity, evidence.comparison
    if compared is None or bounds is None:
        return ""
    if bounds.samples != "reported" and not bounds.moves_samples and not evidence.left_out.accepted:
        return ""
    mine, other = compared.run, compared.fault_free
    same = (mine.digest == other.digest) & ((mine.digest != 0) | ((mine.first == other.first) & (mine.first >= 0)))
    odd = compared.step[~same & (compared.step <= max(ground.steps, default=NEVER))]
    shown = "nothing shows that step {} consumed the same samples, and the scenario permits others"
    return shown.format(odd[0]) if len(odd) else ""


TELL = "Let the trainer tell its samples: docs/bring-your-own-trainer.md"
SPOILS = Spoils(Kind.ORDER, _order_unproven, TELL), Spoils(Kind.COURSE, _other_samples, TELL)
ASSUMPTION = Assumption(_broken, SPOILS, family="steps")
