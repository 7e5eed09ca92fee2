"""States that were restored in a way that may be wrong: another step, no save, damage, other content, half of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.judge.facts import alarms
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import touches, union
from harness.judge.facts.known import By
from harness.judge.facts.missing_or_bad_saves import NoSave
from harness.judge.facts.reported import usual_strides
from harness.judge.facts.restarts import Restore
from harness.judge.facts.saves import Damage
from harness.timeline.lookups import grouped


@dataclass(frozen=True)
class WentOnElsewhere:
    """A process went on with another step than the one after its state. `left_out`: one step may be a line that was
    lost."""

    restore: Restore
    left_out: bool
    by: By = By.SEEN


@dataclass(frozen=True)
class Apart:
    """The ranks of one world restored different steps."""

    steps: Sequence[int]
    by: By = By.SEEN


@dataclass(frozen=True)
class OfNoSave:
    """A state of a step of which no sound save is known. `none`: a save of it was told, and it is none. `begun`: one
    was begun, and the harness had not seen it."""

    restore: Restore
    none: NoSave | None = None
    begun: bool = False

    @property
    def by(self) -> By:
        return By.SEEN if self.none is not None else By.TOLD if self.begun else By.MISSING


@dataclass(frozen=True)
class TookDamaged:
    """A restart took what a fault had damaged, and named none that it passed over. `anew`: the trainer says that it had
    saved it anew by then, and the harness did not see it."""

    damage: Damage
    anew: bool

    @property
    def by(self) -> By:
        return By.TOLD if self.anew else By.SEEN


@dataclass(frozen=True)
class OtherContent:
    """What was restored is not what was committed there, by the digests that the trainer tells of both."""

    words: str
    by: By = By.TOLD


@dataclass(frozen=True)
class ModelAlone:
    """These ranks restored their model, and nothing shows that their optimizer's state was restored."""

    ranks: Sequence[int]
    by: By = By.MISSING


@dataclass(frozen=True)
class WentBack:
    """A world went back without forming anew. `contradicted`: its steps do not show what it said."""

    last: int
    to: int
    contradicted: bool
    by: By = By.MISSING


def went_on_elsewhere(evidence: Analysis) -> Iterator[WentOnElsewhere]:
    strides = usual_strides(evidence.run, evidence.fault_free)
    for member in (member for restart in evidence.restarts for member in restart.members):
        stride = strides.get(member.rank)
        for each in member.restores if stride and not member.lost else ():
            if each.step is not None and not each.step < each.went_on <= each.step + (stride or 1):
                yield WentOnElsewhere(each, each.went_on == each.step + 2 * (stride or 1))


def apart(evidence: Analysis) -> Iterator[Apart]:
    steps = (sorted({step for _, step in restart.states}) for restart in evidence.restarts)
    return (Apart(each) for each in steps if len(each) > 1)


def of_no_save(evidence: Analysis) -> Iterator[OfNoSave]:
    """A state must come from somewhere: a checkpoint, a peer, or what was there before the run."""
    run, saves = evidence.run, evidence.saves
    none = {each.save.step: each for each in saves.none.values() if each.by is By.SEEN}
    good = {save.step for save in saves.good}
    for restart in evidence.restarts[1:] if run.checkpoints else ():
        until = restart.epoch.begin + run.uncertainty_ns
        for each, step in restart.states:
            if not max(restart.from_a_member, 0) < step < restart.epoch.first:
                continue
            if not saves.of_step(step, until) and not saves.store.saw(step, until):
                yield OfNoSave(each)
            elif step in none and step not in good:
                yield OfNoSave(each, none[step])
            elif (begun := saves.only_begun(step, until)) and saves.store.never_saw(step, begun.at, until):
                yield OfNoSave(each, begun=True)


def took_damaged(evidence: Analysis) -> Iterator[TookDamaged]:
    """Bytes of tensors of this checkpoint were lost or changed; a later restore took it, by its step and its name, and
    told of none that it passed over; and nobody saved it again in between. Where the harness watches this checkpoint,
    the trainer's word for that is not enough. A restore without its step is not judged."""
    damage = [each for damaged in evidence.saves.damage.values() for each in damaged]
    told = ((restart, *state) for restart in evidence.restarts if damage for state in restart.states)
    by_step = grouped((step, (restart, restore)) for restart, restore, step in told)
    for each in damage:
        for restart, restore in by_step.get(each.step or 0, ()) if each.tensor_bytes else ():
            known = any(passed_over.is_damaged(each) for passed_over in restart.passed_over)
            if not known and restore.took(each, evidence.run.uncertainty_ns):
                yield TookDamaged(each, restore.at > each.until)


def other_content(evidence: Analysis) -> Iterator[OtherContent]:
    restores = (restore for restart in evidence.restarts[1:] for restore in restart.restores)
    return (OtherContent(each.is_another) for each in restores if each.is_another)


def model_alone(evidence: Analysis) -> Iterator[ModelAlone]:
    """Unless the losses show that nothing was missing."""
    compared = evidence.comparison
    restores = (restore for restart in evidence.restarts[1:] for restore in restart.restores)
    ranks = sorted({each.rank for each in restores if each.entered == ("model",)})
    if ranks and not (compared is not None and compared.identical):
        yield ModelAlone(ranks)


def went_back(evidence: Analysis) -> Iterator[WentBack]:
    """By its own decision: nobody said before what is wrong, and no fault was at work that may bring the job to it."""
    run, margin = evidence.run, evidence.run.uncertainty_ns
    if not any(restart.own_decision for restart in evidence.restarts[1:]):
        return
    not_borne_out = {id(alarm) for alarm in alarms.contradicted(run, evidence.spikes)}
    said = [(alarm["at"], alarm["at"]) for alarm in run.anomalies if id(alarm) not in not_borne_out]
    faults = (*run.beside.earlier, *run.faults)
    at_work = [(fault.injected, fault.healed or run.end) for fault in faults if fault.may and fault.injected]
    reasons = union((begin - margin, end + margin) for begin, end in (*said, *at_work))
    for before, restart in itertools.pairwise(evidence.restarts):
        if restart.own_decision and not touches(reasons, before.epoch.begin, restart.moment):
            yield WentBack(before.epoch.last, restart.epoch.first - 1, bool(not_borne_out))


def no_restart(evidence: Analysis) -> str:
    """Why nothing follows of restarts; an empty text: there was one."""
    return "" if len(evidence.restarts) > 1 else "nothing restarted the job"


def no_state(evidence: Analysis) -> str:
    """The same of the parts of a state."""
    told = any(restore.entered for restart in evidence.restarts[1:] for restore in restart.restores)
    return no_restart(evidence) or ("" if told else "no rank told whose state it restored")


def no_damage(evidence: Analysis) -> str:
    """The same of damaged checkpoints."""
    damaged = any(evidence.saves.damage.values())
    compared = any(each.content and each.saved for restart in evidence.restarts[1:] for each in restart.restores)
    return no_restart(evidence) or ("" if damaged or compared else "no fault damaged a checkpoint")
