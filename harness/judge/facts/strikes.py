"""The faults that struck, those that did not, and those that came when no work was left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import OfFault
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import grouped
from harness.timeline.sorted_events import acted_at, first_strike
from harness.timeline.timeline import FaultRecord, Timeline


@dataclass(frozen=True)
class NeverStruck(OfFault):
    """`held_back`: why it could not act when it was due; an empty text: it never was."""

    held_back: str


@dataclass(frozen=True)
class BeginUntold(OfFault):
    """Its effect was measured, and nothing tells when it began to act."""


@dataclass(frozen=True)
class Failed(OfFault):
    error: str


@dataclass(frozen=True)
class AfterTheEnd(OfFault):
    """No step and no checkpoint was left to be done, and nobody started again over it."""


@dataclass(frozen=True)
class NoTimeLeft(OfFault):
    """What only slows a job struck when less than half a step was left."""

    left_ns: int


def struck(evidence: Analysis) -> Iterator[FaultRecord]:
    return (fault for fault in own_faults(evidence.run) if fault.injected is not None)


def own_faults(run: Timeline) -> Iterator[FaultRecord]:
    """Without those of other rehearsals on the same job."""
    return (fault for fault in run.faults if fault.id not in run.beside.faults)


def planned(run: Timeline) -> Mapping[str, Mapping[str, Any]]:
    """Each fault of the plan by its id."""
    return {str(fault["id"]): fault for fault in run.plan.get("faults") or ()}


def never_struck(evidence: Analysis) -> Iterator[NeverStruck | BeginUntold]:
    """How the job ended says why none struck, if it gave up; and why others did not, if it was stopped."""
    run = evidence.run
    if run.beside.cut_short or (run.outcome == "aborted" and first_strike(run.faults) == NEVER):
        return
    records = grouped((record.id, record) for record in run.faults)
    for name in planned(run):
        found = records.get(name, ())
        if any(record.injected is not None or record.error for record in found):
            continue
        if any(record.effects for record in found):
            yield BeginUntold(name)
        else:
            yield NeverStruck(name, next((record.held_back for record in found if record.held_back), ""))


def failed(evidence: Analysis) -> Iterator[Failed]:
    return (Failed(fault.id, fault.error) for fault in own_faults(evidence.run) if fault.error)


def too_late(evidence: Analysis) -> Iterator[AfterTheEnd | NoTimeLeft]:
    work = evidence.work
    for fault in struck(evidence) if work.finished else ():
        at = min(fault.strikes, default=acted_at(fault)) - evidence.run.uncertainty_ns
        gentle = not (fault.kills or fault.stops or fault.spoils)
        if at > work.over:
            yield AfterTheEnd(fault.id)
        elif gentle and at > work.last_begin and work.last_end - at < work.usual_ns / 2:
            yield NoTimeLeft(fault.id, max(work.last_end - at, 0))
