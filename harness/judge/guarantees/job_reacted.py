"""Somebody reacts to a fault that demands that its node be left: the job reports it, leaves the node, or stops.

A job ignored a bad GPU if the same processes on the GPU's node train to the end, and no process reports a `diagnosis`
that may mean this node. If no reaction is logged, the run is inconclusive, because other systems may have reacted. If
another system reacts to faults, switch this guarantee off by `expect: {reaction: off}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.evidence.faults import struck
from harness.judge.facts import tellers
from harness.judge.guarantee import RUN, Analysis, Breaches, FaultRecord, Guarantee, breach
from harness.log.truth import Kind
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import Process
from harness.units import format_duration


def breaches(evidence: Analysis) -> Breaches:
    run = evidence.run
    for fault in _demanding(evidence) if run.outcome == "completed" and len(run.progress) else ():
        since, last = acted_at(fault), int(run.progress.begin[-1]) - run.uncertainty_ns
        alive = {row for target in fault.targets for row in evidence.places.alive(target, since)}
        struck_ones = [run.processes[row] for row in alive]
        if any(since <= each["at"] <= last and _about(each, struck_ones) for each in run.diagnoses):
            continue
        stayed = sorted({run.processes[row].node for row in alive if evidence.places.last_begin[row] >= last > since})
        if stayed:
            after = format_duration(run.end - since)
            text = f"nobody reacted to fault {fault.id} ({fault.kind}): {', '.join(stayed)} still trained at the end"
            yield breach(
                f"{text}, {after} after it struck, and no process reported a diagnosis",
                tellers.NO_REACTION,
                of=fault.id,
            )


def _about(diagnosis: Mapping[str, Any], struck_ones: Sequence[Process]) -> bool:
    suspects = [each for each in diagnosis.get("who") or () if each.keys() & {"rank", "node"}]
    right = any(
        each.get("rank") == one.rank or each.get("node") == one.node for each in suspects for one in struck_ones
    )
    return diagnosis["kind"] not in (Kind.NONE, Kind.UNKNOWN) and (right or not suspects)


def _demanding(evidence: Analysis) -> list[FaultRecord]:
    return [fault for fault in struck(evidence) if fault.must_leave]


def _nothing(evidence: Analysis) -> str:
    return "" if _demanding(evidence) else "no fault struck that demands that its node be left"


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=_nothing, switch="reaction")
