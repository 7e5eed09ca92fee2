"""A process or node that a fault takes or freezes does nothing more, and does not leave by itself.

The victim of a kill must not have ended by itself before the kill.
"""

from collections.abc import Iterable

import numpy as np

from harness.evidence.by_time import Target
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import CLEAN_CODES, acted_at, key_of
from harness.units import counted

KILLED = (None, -9, 137, -15, 143)  # exit codes of killed processes, and of frozen ones that were woken and ended


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    if fault.kills:
        yield from _killed(evidence, fault)
    if fault.freezes and fault.lasts is not None and fault.effects:
        yield from _frozen(evidence, fault, fault.lasts.ns)
    if fault.kills and evidence.run.outcome == "completed":
        yield from _stayed_or_left(evidence, fault)


def _killed(evidence: Analysis, fault: FaultRecord) -> Flaws:
    gone = max([acted_at(fault), *(effect["at"] for effect in fault.effects)])
    ranks = [target for target in fault.targets if target.get("rank") is not None]
    for row in _alive(evidence, ranks, acted_at(fault)):
        victim = evidence.run.processes[row]
        if acted_at(fault) < victim.last_seen and evidence.places.last_begin[row] > gone:
            yield f"killed rank {victim.rank}, but the rank did steps afterwards"


def _frozen(evidence: Analysis, fault: FaultRecord, lasts_ns: int) -> Flaws:
    run, (order, places_of) = evidence.run, evidence.run.rows_by_process
    since = max(effect["at"] for effect in fault.effects) + run.uncertainty_ns
    until = min(acted_at(fault) + lasts_ns, fault.healed or NEVER, fault.cancelled or NEVER) - run.uncertainty_ns
    for row in _alive(evidence, fault.targets, acted_at(fault)) if since < until else ():
        victim, ends = run.processes[row], run.steps.end[order[places_of[row] : places_of[row + 1]]]
        steps = int(np.searchsorted(ends, until) - np.searchsorted(ends, since, "right"))
        exited = victim.exit_code not in KILLED and since < (victim.exited or 0) < until
        if steps > 0 or exited or since < victim.last_seen < until:
            what = f"did {counted(steps, 'step')}" if steps > 0 else "exited" if exited else "said something"
            yield f"froze rank {victim.rank}, but the rank {what} meanwhile"


def _stayed_or_left(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for target in fault.targets if fault.notice_ns is not None else ():
        if target.get("rank") is None and key_of(target) in evidence.places.kept:
            yield f"gave {target.get('node')} a notice, but never took the node"
    asked = fault.graceful or fault.notice_ns is not None
    struck = {(at, row) for at in fault.strikes if not asked for row in _alive(evidence, fault.targets, at)}
    for row in sorted({row for at, row in struck if at <= (evidence.run.processes[row].exited or -1)}):
        victim = evidence.run.processes[row]
        warned = evidence.last_notices.get(victim.node, -1) >= acted_at(fault)
        if victim.exit_code in CLEAN_CODES and not warned:
            yield f"should have killed rank {victim.rank}, but the rank exited by itself"


def _alive(evidence: Analysis, targets: Iterable[Target], at: int) -> list[int]:
    return sorted({row for target in targets for row in evidence.places.alive(target, at)})


GUARANTEE = of_faults(_flaws)
