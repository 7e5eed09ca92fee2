"""The data set has the same size in all processes and runs, and each run consumes it in the same order.

If nothing shows that each run consumes its samples in the same order, a difference in samples proves nothing.
"""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils

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


TELL = "Let the trainer tell its samples: docs/bring-your-own-trainer.md"
ASSUMPTION = Assumption(_broken, (Spoils(Kind.ORDER, _order_unproven, TELL),), family="steps")
