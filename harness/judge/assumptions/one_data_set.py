"""The data has one size, in all processes and without a fault."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts.analysis import Analysis

NAMED_SIZES = 5


def _broken(evidence: Analysis) -> Iterator[str]:
    run, fault_free = evidence.run, evidence.fault_free
    sizes = sorted({*run.data_sizes, *(fault_free.data_sizes if fault_free else ())})
    if len(sizes) > 1:
        told = ", ".join(f"{size:,}" for size in sizes[:NAMED_SIZES])
        yield f"the number of samples in the data is not the same everywhere: {told}"


ASSUMPTION = Assumption(_broken, family="steps")
