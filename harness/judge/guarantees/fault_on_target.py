"""Each fault strikes its planned targets while they are part of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import node_of
from harness.judge.guarantee import of_faults
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration

REPORTED_SOON_NS = 2 * 10**8  # a fault is told a moment after it began to act
Aim = tuple[str, Any]  # ("rank", number) or ("node", name)


def _flaws(evidence: Analysis, fault: FaultRecord) -> Iterator[str]:
    run, places = evidence.run, evidence.places
    meant = _meant(run, evidence.planned_faults.get(fault.id, {}))
    struck = Counter(_aim(target, target.get("node")) for target in fault.targets)
    if meant and meant != struck:
        names = f"{_names(struck)}, not {_names(meant)}"
        few = struck.total() == meant.total() or "rank" in names
        yield f"struck {names}" if few else f"struck {struck.total()} nodes, not {meant.total()}"
    for target in fault.targets:
        if not places.had(node_of(target), acted_at(fault)):
            yield f"struck {target.get('node')}, which was not part of the job at that time"
    for target in (each for each in fault.targets if each.get("rank") is None):
        before = acted_at(fault) - places.ended.get(node_of(target), NEVER)
        if before >= run.uncertainty_ns + REPORTED_SOON_NS and not [*places.alive(target, acted_at(fault))]:
            yield f"struck {target.get('node')}, whose command had ended {format_duration(before)} before"


def _meant(run: Timeline, plan: Mapping[str, Any]) -> Counter[Aim]:
    """Nodes are planned by number, in the order in which the job got them. Nothing where a number has no node."""
    nodes = dict(enumerate(run.nodes))
    found = Counter(_aim(target, nodes.get(target.get("node_index", -1))) for target in plan.get("targets") or ())
    return Counter() if ("node", None) in found else found


def _aim(target: Mapping[str, Any], node: str | None) -> Aim:
    return ("node", node) if target.get("rank") is None else ("rank", target["rank"])


def _names(found: Counter[Aim]) -> str:
    """`rank 0`, `ranks 0, 1`, `node1`, `rank 0 and node1`."""
    ranks = sorted(str(name) for kind, name in found.elements() if kind == "rank")
    nodes = sorted(str(name) for kind, name in found.elements() if kind == "node")
    shown = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""
    return " and ".join(filter(None, [shown, ", ".join(nodes)])) or "nothing"


GUARANTEE = of_faults(_flaws)
