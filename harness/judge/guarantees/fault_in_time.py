"""Each fault strikes while the job has work left."""

from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.timeline.sorted_events import acted_at
from harness.units import format_duration


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    work = evidence.work
    at = min(fault.strikes, default=acted_at(fault)) - evidence.run.uncertainty_ns
    if work.finished and at > work.over:
        yield "struck after the job had done all its work"
        return
    gentle = work.finished and not (fault.kills or fault.stops or fault.spoils)
    if gentle and at > work.last_begin and work.last_end - at < work.usual_ns / 2:
        left = format_duration(max(work.last_end - at, 0))
        yield f"struck {left} before the end of the last step: too late to have an effect"


GUARANTEE = of_faults(_flaws)
