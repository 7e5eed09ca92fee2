"""How long each fault acted, beside the time that was planned for it, and which people stopped before that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import OfFault
from harness.judge.facts.strikes import struck
from harness.judge.facts.work import Work
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord
from harness.units import Duration

LATE_NS = 10 * 10**9  # so much later, or as long again, a fault may be undone
REPORTED_WITHIN_NS = 10**9  # a fault sees that its victim is gone before the launcher there has said so


@dataclass(frozen=True)
class Stopped(OfFault):
    """By people, before its time, while the job went on."""

    after_ns: int
    lasts: Duration | None


@dataclass(frozen=True)
class NeverUndone(OfFault):
    lasts: Duration


@dataclass(frozen=True)
class UndoneLate(OfFault):
    late_ns: int
    lasts: Duration


@dataclass(frozen=True)
class UndoneEarly(OfFault):
    """Though the job neither got rid of its victim nor was over before."""

    after_ns: int
    lasts: Duration


@dataclass(frozen=True)
class OverBefore(OfFault):
    """It was over before it acted. `undone`: it was undone then; else the job had recovered from it."""

    undone: bool
    early_ns: int


def stopped(work: Work, fault: FaultRecord) -> Stopped | None:
    at = fault.cancelled
    if at is None or not work.has_steps or work.last_end <= at:
        return None
    lasted, planned = at - acted_at(fault), 0 if fault.lasts is None else fault.lasts.ns
    return None if fault.effects and lasted >= planned else Stopped(fault.id, lasted, fault.lasts)


def never_undone(evidence: Analysis) -> Iterator[NeverUndone]:
    """A fault that broke off says so itself; a log without an end may have lost the line."""
    for fault in struck(evidence) if evidence.run.outcome is not None else ():
        if fault.lasts is not None and fault.healed is None and not fault.error:
            yield NeverUndone(fault.id, fault.lasts)


def undone_late(evidence: Analysis) -> Iterator[UndoneLate]:
    for fault in struck(evidence):
        if fault.lasts is None or fault.healed is None:
            continue
        late = fault.healed - acted_at(fault) - fault.lasts.ns
        if late > max(LATE_NS, fault.lasts.ns):
            yield UndoneLate(fault.id, late, fault.lasts)


def undone_early(evidence: Analysis) -> Iterator[UndoneEarly]:
    work = evidence.work
    for fault in struck(evidence) if work.has_steps else ():
        if fault.lasts is None or fault.healed is None or work.last_end <= fault.healed:
            continue
        lasted = fault.healed - acted_at(fault)
        if lasted < fault.lasts.ns and not stopped(work, fault) and not _victim_ended(evidence, fault, fault.healed):
            yield UndoneEarly(fault.id, lasted, fault.lasts)


def _victim_ended(evidence: Analysis, fault: FaultRecord, healed: int) -> bool:
    ranks = {target.get("rank") for target in fault.targets} - {None}
    return any(
        exit_["at"] - (REPORTED_WITHIN_NS if exit_["rank"] in ranks else 0) <= healed
        for target in fault.targets
        for exit_ in evidence.places.exits(target, acted_at(fault), healed + REPORTED_WITHIN_NS)
    )


def over_before(evidence: Analysis) -> Iterator[OverBefore]:
    for fault in struck(evidence):
        for undone, at in ((True, fault.healed), (False, fault.recovered)):
            if at is not None and at < acted_at(fault) - evidence.run.uncertainty_ns:
                yield OverBefore(fault.id, undone, acted_at(fault) - at)
