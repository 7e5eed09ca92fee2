"""The effect of each fault is over once the fault is undone."""

from harness.evidence.faults import Effect, struck
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for end in map(Effect.of, fault.ends):
        if not end.is_over:
            bound = f"{end.expected} {end.unit}".strip()
            yield f"was healed, but its effect did not end: measured {end.shown}, expected {bound}"


def _unmeasured(evidence: Analysis) -> str:
    return "" if any(fault.ends for fault in struck(evidence)) else "the end of no effect was measured"


GUARANTEE = of_faults(_flaws, nothing=_unmeasured, switch="effect_end")
