"""Each fault strikes its planned targets while they are part of the job."""

from harness.evidence.by_time import Target
from harness.evidence.coordinates import elsewhere
from harness.evidence.deaths import listed
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.judge.thresholds import REPORTED_SOON_NS
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at, key_of
from harness.units import format_duration


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    run, places, plan = evidence.run, evidence.places, evidence.planned_faults.get(fault.id, {})
    nodes = dict(enumerate(run.nodes))
    meant = sorted(_name(target, nodes.get(target.get("node_index", -1))) for target in plan.get("targets") or ())
    struck = sorted(_name(target, target.get("node")) for target in fault.targets)
    part = fault.again and {*struck} < {*meant}  # once it has struck all, it may strike one of them again
    if meant and "" not in meant and meant != struck and not part:
        yield f"struck {listed(struck) if struck else 'nothing'}, not {listed(meant)}"
    for target in fault.targets:
        node, rank, alive = target.get("node"), target.get("rank"), [*places.alive(target, acted_at(fault))]
        if alive and rank is not None and (text := elsewhere(run, rank, run.processes[alive[-1]].coordinates)):
            yield f"struck by another mesh: {text}"
        if run.slots and not places.had(key_of(target), acted_at(fault)):
            yield f"struck {node}, which was not part of the job at that time"
        before = acted_at(fault) - places.ended.get(key_of(target), NEVER)
        if rank is None and not alive and before >= run.uncertainty_ns + REPORTED_SOON_NS:
            yield f"struck {node}, whose command had ended {format_duration(before)} before"


def _name(target: Target, node: str | None) -> str:
    return (node or "") if target.get("rank") is None else f"rank {target['rank']}"


GUARANTEE = of_faults(_flaws)
