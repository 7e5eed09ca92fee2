"""Each fault strikes when and how it is planned, with the effect that it is meant to have.

A fault must not strike before its planned step or phase. A fault must strike at most 5 s after its planned step or
phase, unless the harness reads the log late or another fault delays it. Each measurement of a fault's effect must show
that the fault acted. A node that got a notice must be taken away at the announced time. A node that a fault took away
must not come back if no replacement is planned.
"""

from harness.evidence.faults import Effect
from harness.judge.guarantee import Analysis, FaultRecord, Flaws, of_faults
from harness.judge.thresholds import APART_NS, EARLY_STEPS, NOTICE_LATE_NS, NOTICE_SHARE, SEEN_NS, USUAL_FACTOR
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at, key_of
from harness.units import format_duration


def _flaws(evidence: Analysis, fault: FaultRecord) -> Flaws:
    plan = evidence.planned_faults.get(fault.id, {})
    if fault.kind and plan.get("fault") not in (None, fault.kind):
        yield f"was a `{fault.kind}`, and a `{plan['fault']}` was planned"
    if evidence.work.has_steps and not evidence.run.lost:
        yield from _moment(evidence, fault)
    for effect in map(Effect.of, fault.effects):
        if not effect.acted:
            detail = f" ({effect.detail})" if effect.detail else ""
            yield f"did not act as planned: measured {effect.shown}, expected {effect.expected}{detail}"
    yield from _damage(evidence, fault)
    yield from _taking(evidence, fault)


def _moment(evidence: Analysis, fault: FaultRecord) -> Flaws:
    run, when, due = evidence.run, evidence.planned_faults.get(fault.id, {}).get("when") or {}, 0
    step, phase, late = when.get("step"), when.get("phase"), SEEN_NS + run.uncertainty_ns
    if not isinstance(step, int | None):
        yield f"has no planned step that can be read: {step!r}"
        return
    struck = acted_at(fault) + run.uncertainty_ns
    if step is not None and (furthest := evidence.work.furthest(struck)) < step - EARLY_STEPS * run.stride:
        yield f"struck after step {furthest}, and was planned for step {step}"
    if fault.armed is not None and (begins := [each["at"] for each in run.phases if each["name"] == phase]):
        begun = any(fault.armed - late <= at <= struck + APART_NS for at in begins)
        if not begun and not any(each.unheard for each in run.epochs):
            yield f"struck before the phase {phase} began"
        due = min((at for at in begins if at >= fault.armed), default=0)
    elif when.keys() == {"step"} and not run.steps_before:  # a rehearsal may begin after its step
        due = run.first_complete(step)
    late += USUAL_FACTOR * max(0, (fault.recovered or 0) - run.first_complete(fault.recovered_step))
    if due and not fault.held_back and (after := (fault.injecting or due) - due) > late:
        yield f"struck {format_duration(after)} after {f'step {step}' if phase is None else f'the phase {phase}'}"


def _damage(evidence: Analysis, fault: FaultRecord) -> Flaws:
    for damage in fault.damaged:
        begun = damage["at"] if fault.injecting is None else fault.injecting
        place, digest = str(damage.get("checkpoint")), damage.get("sha256")
        seen = [each for each in evidence.run.published if each["at"] < begun and not each.get("sampled")]
        if digest and any((each.get("path"), each.get("sha256")) == (place, digest) for each in seen):
            yield f"left {place} as it was: the harness saw the same content before"


def _taking(evidence: Analysis, fault: FaultRecord) -> Flaws:
    run, work, promised = evidence.run, evidence.work, fault.notice_ns or 0
    asked = fault.notice_ns is not None and fault.kills and run.outcome == "completed" and work.has_steps
    for after in (at - acted_at(fault) for at in fault.strikes if asked and at < work.over):
        if 0 < after < promised * NOTICE_SHARE or after > promised / NOTICE_SHARE + NOTICE_LATE_NS:
            yield f"took the node {format_duration(after)} after its notice; {format_duration(promised)} were planned"
    for target in fault.targets if fault.replaced is False else ():
        node, incarnation = key_of(target)
        back = evidence.places.given.get((node, incarnation + 1), -NEVER)
        if target.get("rank") is None and back > acted_at(fault):
            yield f"was to bring no replacement, and {node} came back"


GUARANTEE = of_faults(_flaws)
