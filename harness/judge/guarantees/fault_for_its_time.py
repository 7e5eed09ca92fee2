"""Each fault acts for its planned time, and is undone then.

A fault may end before its planned end if the job gets rid of the victim (a process or node), if the job is over, or if
people stop the fault. If no log shows the victim's end, the victim counts as gone once new process groups do all
further steps and the victim logs nothing more. A fault may be undone late by up to 10 s, or by up to its planned
duration if this duration is over 10 s.
"""

from harness.evidence.faults import stopped
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.judge.thresholds import EXIT_TOLD_NS, UNDONE_LATE_NS
from harness.timeline.sorted_events import acted_at
from harness.units import format_duration


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    work, lasts = evidence.work, fault.lasts
    if lasts is not None and fault.healed is None and not fault.error and evidence.run.outcome is not None:
        yield f"was never undone; its planned duration is {lasts}"
    if lasts is not None and fault.healed is not None:
        lasted = fault.healed - acted_at(fault)
        if (late := lasted - lasts.ns) > max(UNDONE_LATE_NS, lasts.ns):
            yield f"was undone {format_duration(late)} after its planned duration, {lasts}"
        goes_on = work.has_steps and work.last_end > fault.healed and stopped(work, fault) is None
        if late < 0 and goes_on and not _victim_ended(evidence, fault, fault.healed):
            yield f"was undone after {format_duration(lasted)}; its planned duration is {lasts}"
    told = [*(("measured", effect["at"]) for effect in fault.effects)]
    for what, at in (*told, ("undone", fault.healed), ("recovered from", fault.recovered)):
        if at is not None and (early := acted_at(fault) - at) > evidence.run.uncertainty_ns:
            yield f"was {what} {format_duration(early)} before it acted"


def _victim_ended(evidence: Analysis, fault: FaultRecord, healed: int) -> bool:
    run, ranks = evidence.run, {target.get("rank") for target in fault.targets} - {None}
    since, until = acted_at(fault), healed + EXIT_TOLD_NS
    exits = (exit_ for target in fault.targets for exit_ in evidence.places.exits(target, since, until))
    told = any(exit_["at"] - (EXIT_TOLD_NS if exit_["rank"] in ranks else 0) <= healed for exit_ in exits)
    before = {run.epochs[each.epoch].world for each in run.stretches if each.begin <= healed}
    after = {run.epochs[each.epoch].world for each in run.stretches if each.end > healed}
    anew, later = bool(before) and before.isdisjoint(after), healed + run.uncertainty_ns + 1
    there = (run.processes[row] for target in fault.targets for row in evidence.places.alive(target, later))
    return told or (anew and not any(each.started <= acted_at(fault) and each.last_seen >= later for each in there))


GUARANTEE = of_faults(_flaws)
