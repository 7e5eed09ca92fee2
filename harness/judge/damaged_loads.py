"""Did a restart load a checkpoint that a fault had damaged before, without a word?

Proved where all of this is in the log: the fault said that bytes of tensors of this checkpoint were lost or changed; a
later restore took this checkpoint, by its step and its name, and told of none that it passed over; and nobody saved
that step again in between, by the trainer's word or by the digests that the harness took. A restore that does not say
its step is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from harness.judge.codes import Code
from harness.judge.score import Finding, Verdict
from harness.timeline.saves import COMMITTED, PART, STARTED
from harness.timeline.timeline import FaultRecord, Stretch, Timeline


class Start(Protocol):
    """What the members of one epoch began it with."""

    @property
    def members(self) -> Sequence[Stretch]: ...

    @property
    def fallback(self) -> Sequence[Mapping[str, Any]]: ...


def findings(run: Timeline, starts: Sequence[Start]) -> Iterator[Finding]:
    """One for each load that is proved."""
    for fault in run.faults:
        for damage in fault.damaged:
            for start in starts if damage.get("tensor_bytes") else ():
                restores = (each.restored for each in start.members if each.restored)
                known = any(_names(run, damage, passed_over) for passed_over in start.fallback)
                if not known and any(_loaded(run, damage, event) for event in restores):
                    yield Finding(Verdict.FAIL, _in_words(fault, damage), Code.RESTART_DAMAGED_LOAD)
    for fault in run.faults:
        if fault.damaged and not any(_may_have_met(run, damage, starts) for damage in fault.damaged):
            text = f"the checkpoint that `{fault.id}` damaged was never needed: the job went on from a newer one"
            yield Finding(Verdict.INCONCLUSIVE, text, Code.FAULT_DAMAGE_NEVER_MET)


def steps_damaged(run: Timeline, fault: FaultRecord) -> set[int] | None:
    """Whose checkpoints it damaged; `None` where that is not known of all its damage, or none was told."""
    steps = [damage.get("step", _told_step(run, damage)) for damage in fault.damaged]
    known = {step for step in steps if step is not None}
    return known if steps and len(known) == len(set(steps)) else None


def _may_have_met(run: Timeline, damage: Mapping[str, Any], starts: Sequence[Start]) -> bool:
    """Whether a restart took this checkpoint, passed it over, or found none as new; or there was no restart."""
    held = damage.get("step", _told_step(run, damage))
    met, newer = False, False
    for start in starts:
        steps = [(each.restored, each.restored.get("step")) for each in start.members if each.restored]
        later = [step for event, step in steps if isinstance(step, int) and event["at"] > damage["at"]]
        met |= any(held is None or step <= held for step in later)
        met |= any(_names(run, damage, passed_over) for passed_over in start.fallback)
        newer |= bool(later)
    return met or not newer


def _loaded(run: Timeline, damage: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether this restore took that checkpoint, as it was left by the damage."""
    step = event.get("step")
    if not isinstance(step, int) or not step or event["at"] <= damage["at"] + run.uncertainty_ns:
        return False
    if step != damage.get("step", _told_step(run, damage)) or not _by_name(damage, event.get("source")):
        return False
    again = [*_begun_again(run, step), *_written_again(run, damage)]
    return not any(damage["at"] < at < event["at"] for at in again)


def _names(run: Timeline, damage: Mapping[str, Any], passed_over: Mapping[str, Any]) -> bool:
    """Whether a checkpoint that was passed over is the damaged one; one without step and name may be any."""
    step, place = passed_over.get("step"), passed_over.get("path") or passed_over.get("source")
    if isinstance(place, str) and place:
        return bool(set(damage.get("names") or ()) & set(place.split("/")))
    return step is None or step == damage.get("step", _told_step(run, damage))


def _by_name(damage: Mapping[str, Any], source: object) -> bool:
    """A restore that names no source has taken it if no other checkpoint had the same step."""
    if not isinstance(source, str) or not source:
        return not damage.get("copies")
    return bool(set(damage.get("names") or ()) & set(source.split("/")))


def _told_step(run: Timeline, damage: Mapping[str, Any]) -> int | None:
    """The step that the trainer told when it committed the checkpoint."""
    names = set(damage.get("names") or ())
    for event in reversed(run.checkpoints):
        mine = names & set(str(event.get("path", "")).split("/"))
        if event["event"] in (COMMITTED, PART) and mine and event["at"] < damage["at"]:
            return int(event["step"])
    return None


def _begun_again(run: Timeline, step: int) -> Iterator[int]:
    """When a save of this step began. A commit that is told late is of the save before; where nobody tells when a save
    begins, it stands for that."""
    mine = [event for event in run.checkpoints if event.get("step") == step]
    begun = [event for event in mine if event["event"] == STARTED]
    yield from (event["at"] for event in begun or mine)


def _written_again(run: Timeline, damage: Mapping[str, Any]) -> Iterator[int]:
    """When the harness saw other bytes there than the damage had left."""
    for event in run.published:
        if event.get("path") == damage.get("checkpoint") and event.get("sha256") != damage.get("sha256"):
            yield event["at"]


def _in_words(fault: FaultRecord, damage: Mapping[str, Any]) -> str:
    text = f"the job resumed from the checkpoint that `{fault.id}` damaged, and did not report the damage"
    count = damage["tensor_bytes"]
    done = f"{damage.get('how', 'damage')}, {count} byte{'' if count == 1 else 's'} of tensors"
    return f"{text} ({done} in {damage.get('path')})"
