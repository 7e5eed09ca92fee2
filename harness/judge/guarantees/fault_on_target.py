"""Each fault strikes its planned targets while they are part of the job."""

from harness.judge.facts.by_time import Target, node_of
from harness.judge.facts.coordinates import elsewhere
from harness.judge.facts.deaths import listed
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.judge.thresholds import REPORTED_SOON_NS
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at
from harness.units import format_duration


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    """Yields targets not planned or not part of the job. Plans number nodes in the order in which the job got them."""
    run, places, plan = evidence.run, evidence.places, evidence.planned_faults.get(fault.id, {})
    nodes = dict(enumerate(run.nodes))
    meant = sorted(_name(target, nodes.get(target.get("node_index", -1))) for target in plan.get("targets") or ())
    struck = sorted(_name(target, target.get("node")) for target in fault.targets)
    if meant and "" not in meant and meant != struck:
        yield f"struck {listed(struck) if struck else 'nothing'}, not {listed(meant)}"
    for target in (each for each in fault.targets if each.get("rank") is not None):
        told = [run.processes[row].coordinates for row in places.alive(target, acted_at(fault))]
        if told and (text := elsewhere(run, target["rank"], told[-1])):
            yield f"struck by another mesh: {text}"
    for target in fault.targets:
        if run.slots and not places.had(node_of(target), acted_at(fault)):
            yield f"struck {target.get('node')}, which was not part of the job at that time"
    for target in (each for each in fault.targets if each.get("rank") is None):
        before = acted_at(fault) - places.ended.get(node_of(target), NEVER)
        if before >= run.uncertainty_ns + REPORTED_SOON_NS and not [*places.alive(target, acted_at(fault))]:
            yield f"struck {target.get('node')}, whose command had ended {format_duration(before)} before"


def _name(target: Target, node: str | None) -> str:
    return (node or "") if target.get("rank") is None else f"rank {target['rank']}"


GUARANTEE = of_faults(_flaws)
