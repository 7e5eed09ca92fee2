"""Whom each fault struck, beside whom it was to strike, and whether the training's bytes went through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import node_of
from harness.judge.facts.known import OfFault
from harness.judge.facts.strikes import planned, struck
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import Timeline

REPORTED_SOON_NS = 2 * 10**8  # a fault is told a moment after it began to act
Aim = tuple[str, Any]  # ("rank", number) or ("node", name)


@dataclass(frozen=True)
class OtherTargets(OfFault):
    struck: Counter[Aim]
    meant: Counter[Aim]


@dataclass(frozen=True)
class NotOfJob(OfFault):
    """The job did not have this node then."""

    node: str


@dataclass(frozen=True)
class AlreadyEnded(OfFault):
    """The command of this node had ended so long before."""

    node: str
    ended_ns: int


@dataclass(frozen=True)
class MissedTraffic(OfFault):
    """Too few bytes of the training went through a network fault on this node."""

    node: str
    measured: int
    least: int | None
    seconds: float
    detail: str


def other_targets(evidence: Analysis) -> Iterator[OtherTargets]:
    plans = planned(evidence.run)
    for fault in struck(evidence):
        meant, found = _meant(evidence.run, plans.get(fault.id, {})), Counter(map(_aim, fault.targets))
        if meant and meant != found:
            yield OtherTargets(fault.id, found, meant)


def not_of_job(evidence: Analysis) -> Iterator[NotOfJob]:
    for fault in struck(evidence):
        for target in fault.targets:
            if not evidence.places.had(node_of(target), acted_at(fault)):
                yield NotOfJob(fault.id, str(target.get("node")))


def already_ended(evidence: Analysis) -> Iterator[AlreadyEnded]:
    places, soon = evidence.places, evidence.run.uncertainty_ns + REPORTED_SOON_NS
    for fault in struck(evidence):
        for target in (each for each in fault.targets if each.get("rank") is None):
            before = acted_at(fault) - places.ended.get(node_of(target), NEVER)
            if before >= soon and not [*places.alive(target, acted_at(fault))]:
                yield AlreadyEnded(fault.id, str(target.get("node")), before)


def missed_traffic(evidence: Analysis) -> Iterator[MissedTraffic]:
    for fault in evidence.run.faults:
        for told in fault.traffic if fault.injected is not None and fault.network else ():
            if told.get("ok") is False:
                measured, least, seconds = told.get("measured", 0), told.get("least"), told.get("seconds", 0)
                detail = told.get("detail", "")
                yield MissedTraffic(fault.id, str(told.get("node")), measured, least, seconds, detail)


def _aim(target: Mapping[str, Any]) -> Aim:
    return ("node", target.get("node")) if target.get("rank") is None else ("rank", target["rank"])


def _meant(run: Timeline, plan: Mapping[str, Any]) -> Counter[Aim]:
    """Nodes are planned by number, in the order in which the job got them. Nothing where a number has no node."""
    found: Counter[Aim] = Counter()
    for target in plan.get("targets") or ():
        number = target.get("node_index", -1)
        if target.get("rank") is not None:
            found["rank", target["rank"]] += 1
        elif isinstance(number, int) and 0 <= number < len(run.nodes):
            found["node", run.nodes[number]] += 1
        else:
            return Counter()
    return found
