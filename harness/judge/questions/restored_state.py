"""A restart names a save; its state is that save's. Every restart is asked, in every run.

It is the same for all ranks, and the step that follows it comes next. It was begun before, or a peer has it. It is the
newest sound one of its own series, unless the restart told why not, or the job went back by its own decision. It is
what was saved there.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence

from harness.judge.facts import alarms
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import touches, union
from harness.judge.facts.deaths import listed
from harness.judge.facts.reported import blindness, usual_strides
from harness.judge.facts.restarts import PassedOver, Restart, Restore, own_series
from harness.judge.facts.saves import Damage, Newest, Save
from harness.judge.score import S, Score, ScoreResult
from harness.judge.verdict import Claim, Code, Ground, Kind, failed, unknown
from harness.timeline.joined_steps import PEER
from harness.timeline.lookups import grouped

IN_FLIGHT = 2  # a checkpoint that is still being written when its job is killed costs one interval more


class Restarts(Score):
    name = "restarts"
    order = 2
    by_steps = False

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        blind = blindness(evidence.run, evidence.fault_free)
        return ScoreResult({}, reasons=[] if blind else _claims(evidence))


def _claims(evidence: Analysis) -> Sequence[Claim]:
    """One example for each question. What only leaves something open is not asked where something is found."""
    wrong = (_other_step, _unlike, _of_no_save, _damaged, _not_the_newest, _further_than_planned)
    left_open = (_without_reason, _contradicted, _untold, _without_an_end, _other_content, _without_optimizer)
    for questions in (wrong, left_open):
        found = [claim for question in questions for claim in itertools.islice(question(evidence), 1)]
        if found:
            return found
    return []


def _other_step(evidence: Analysis) -> Iterator[Claim]:
    """A process must go on with the step after the one that it said it restored."""
    strides = usual_strides(evidence.run, evidence.fault_free)
    for member in (member for restart in evidence.restarts for member in restart.members):
        stride = strides.get(member.rank)
        for each in member.restores if stride and not member.lost else ():
            if each.step is not None and not each.step < each.went_on <= each.step + (stride or 1):
                text = f"{_said(each)}, but went on with step {each.went_on}"
                one = each.went_on == each.step + 2 * (stride or 1)
                lost = [Ground(Kind.ABSENCE, (each.process,), (each.step + 1,))] if one else []
                yield failed(Code.RESTART_OTHER_STEP, text, *lost)


def _unlike(evidence: Analysis) -> Iterator[Claim]:
    for restart in evidence.restarts:
        states = sorted({step for _, step in restart.states})
        if len(states) > 1:
            shown = ", ".join(str(step) for step in states)
            yield failed(Code.RESTART_UNLIKE, f"ranks of one world restored different steps: {shown}")


def _of_no_save(evidence: Analysis) -> Iterator[Claim]:
    """A state must come from somewhere: a checkpoint, a peer, or what was there before the run."""
    run, saves = evidence.run, evidence.saves
    none = {each.save.step: each for each in saves.none.values() if each.proved}
    good = {save.step for save in saves.good}
    for restart in evidence.restarts[1:] if run.checkpoints else ():
        until = restart.epoch.begin + run.uncertainty_ns
        for each, step in restart.states:
            if not max(restart.from_a_member, 0) < step < restart.epoch.first:
                continue
            if not saves.of_step(step, until) and not saves.store.saw(step, until):
                text = f"{_said(each)}, but no checkpoint of that step was ever started: its state is not known"
                yield unknown(Code.RESTART_NEVER_SAVED, text)
            elif step in none and step not in good:
                text = f"{_said(each)}, but its checkpoint is none: {none[step].why}"
                yield failed(Code.RESTART_NEVER_SAVED, text)
            elif (begun := saves.only_begun(step, until)) and saves.store.never_saw(step, begun.at, until):
                text = f"{_said(each)}, but that checkpoint was only begun by then, and the harness had not seen it"
                yield unknown(Code.RESTART_NEVER_SAVED, text)


def _damaged(evidence: Analysis) -> Iterator[Claim]:
    """Proved where all of this is in the log: bytes of tensors of this checkpoint were lost or changed; a later restore
    took it, by its step and its name, and told of none that it passed over; and nobody saved it again in between. Where
    the harness watches this checkpoint, the trainer's word for that is not enough. A restore without its step is not
    judged."""
    damage = [each for damaged in evidence.saves.damage.values() for each in damaged]
    told = ((restart, *state) for restart in evidence.restarts if damage for state in restart.states)
    by_step = grouped((step, (restart, restore)) for restart, restore, step in told)
    for each in damage:
        for restart, restore in by_step.get(each.step or 0, ()) if each.tensor_bytes else ():
            known = any(passed_over.is_damaged(each) for passed_over in restart.passed_over)
            if not known and restore.took(each, evidence.run.uncertainty_ns):
                text = f"the job resumed from the checkpoint that `{each.fault}` damaged, and did not report the damage"
                done = f"{each.how}, {each.tensor_bytes} byte{'s' * (each.tensor_bytes != 1)} of tensors"
                text = f"{text} ({done} in {each.path})"
                if restore.at <= each.until:
                    yield failed(Code.RESTART_DAMAGED_LOAD, text)
                else:
                    unseen = "the trainer said it had saved that anew, and the harness did not see it"
                    yield unknown(Code.RESTART_DAMAGED_LOAD, f"{text}; {unseen}")
    yield from _damage_never_met(evidence)


def _damage_never_met(evidence: Analysis) -> Iterator[Claim]:
    """No restart took the damaged checkpoint, passed it over, or found none as new; and there was a restart."""
    if not any(evidence.saves.damage.values()):
        return
    states = sorted((each.at, step) for restart in evidence.restarts for each, step in restart.states)
    lowest = list(itertools.accumulate((step for _, step in reversed(states)), min))[::-1]  # of it and all after it
    passed_over = {item for restart in evidence.restarts for item in restart.passed_over}
    places = {item.place for item in passed_over}
    names = {name for place in places for name in place.split("/") if place}
    steps = {item.step for item in passed_over if not item.place and item.step is not None}

    def may_have_met(damage: Damage) -> bool:
        later = bisect.bisect_right(states, damage.at, key=lambda state: state[0])
        took = later < len(states) and (damage.step is None or lowest[later] <= damage.step)
        return took or later == len(states) or bool(damage.names & names) or damage.step in steps

    for fault, damaged in evidence.saves.damage.items():
        if damaged and not any(may_have_met(damage) for damage in damaged):
            text = f"the checkpoint that `{fault}` damaged was never needed: the job went on from a newer one"
            yield unknown(Code.FAULT_DAMAGE_NEVER_MET, text)


def _not_the_newest(evidence: Analysis) -> Iterator[Claim]:
    """A restart takes the newest sound save of its series. It names those that it passes over, and something is wrong
    with each of them."""
    choice = _Choice(evidence)
    for restart in evidence.restarts:
        choice.named += restart.passed_over
        if restart.own_decision:
            choice.leave_behind(restart)
            continue
        newest, unnamed = choice.newest(restart), choice.newest(restart, lambda save: not choice.is_named(save))
        yield from _older(restart, unnamed, newest, choice.sure)
        for each, step in restart.states:
            if newest is not None and 0 < step < newest.step and not choice.may_be_bad(newest, restart):
                text = f"rank {each.rank} passed over the checkpoint of step {newest.step}, which nothing had damaged"
                seen = newest in evidence.saves.store.sights
                text += "; the harness had seen it whole" if seen else ""
                yield (failed if seen else unknown)(Code.RESTART_PASSED_OVER_GOOD, text)


class _Choice:
    """The checkpoints that the restarts can take, one restart after the other."""

    def __init__(self, evidence: Analysis):
        self._evidence, self._saves, self._margin_ns = evidence, evidence.saves, evidence.run.uncertainty_ns
        # Else the harness saw some, or some were begun, and nobody told how they ended.
        self.sure = bool(evidence.saves.whole)
        known = self._saves.good if self.sure else [*self._saves.seen, *self._saves.open]
        whole = [(save.last_at, save.step, save) for save in known if save.step >= 0]
        series = own_series(evidence.run, evidence.saves) if self.sure else ()
        own = [each for each in whole if each[2].series in series] if self.sure else whole
        self._of_all, self._of_series = Newest(whole), Newest(own)
        self.named: list[PassedOver] = []  # by this restart and those before it
        self._went_back: list[tuple[int, int]] = []  # when, and to which step; each to a later one than those before

    def leave_behind(self, restart: Restart) -> None:
        """What was saved after the state that the job went back to by its own decision."""
        if restart.states:
            step = min(step for _, step in restart.states)
            while self._went_back and self._went_back[-1][1] >= step:
                self._went_back.pop()
            self._went_back.append((restart.moment, step))

    def newest(self, restart: Restart, good: Callable[[Save], bool] = lambda save: True) -> Save | None:
        sound, moment = self._saves.sound_at(restart.epoch.begin), restart.moment - self._margin_ns

        def there(save: Save) -> bool:
            place = bisect.bisect_left(self._went_back, save.last_at, key=lambda each: each[0])
            left_behind = place < len(self._went_back) and save.step > self._went_back[place][1]
            return sound(save) and not left_behind

        pool = self._of_series if self._of_series.before(moment, there) else self._of_all
        return pool.before(moment, lambda save: there(save) and good(save))

    def is_named(self, save: Save) -> bool:
        return any(item.is_save(save) for item in self.named)

    def may_be_bad(self, save: Save, restart: Restart) -> bool:
        """Whether a fault may have kept the job from reading it; or where the harness did not see it in a store, it may
        have gone with a node that was lost."""
        if self._saves.store.is_hidden(save.last_at, restart.epoch.begin):
            return True
        if save.process < 0 or save in self._saves.store.sights:
            return False
        node = self._evidence.run.processes[save.process].node
        lost = (fault for fault in self._evidence.run.faults if fault.kills and fault.injected is not None)
        return any(
            {"node": node, "rank": None}.items() <= {"rank": None, **target}.items()
            for fault in lost
            if (fault.injected or 0) <= restart.epoch.begin
            and save.last_at <= max(fault.injected or 0, *fault.strikes, 0)
            for target in fault.targets
        )


def _older(restart: Restart, unnamed: Save | None, newest: Save | None, sure: bool) -> Iterator[Claim]:
    """`unnamed`: the newest of those that no restart has passed over until then. No reason is good enough to take none
    of them."""
    claim = failed if sure else unknown
    code = Code.RESTART_NOT_NEWEST if sure else Code.RESTART_NOT_PUBLISHED
    for each, step in restart.states if sure or restart.number else ():
        save = unnamed if step else newest
        if save is not None and step < save.step:
            why = "and skipped all saved checkpoints" if not step else "and named no newer one that is damaged"
            why = why if restart.passed_over else "and gave no reason"
            yield claim(code, f"rank {each.rank} resumed from step {step} {why}, {_known(save, sure)}")
    first = restart.epoch.first
    silent = restart.number and restart.newcomers and not restart.restores  # one may not tell its step
    if silent and unnamed is not None and first <= unnamed.step and restart.from_a_member < first - 1:
        text = f"rank {restart.newcomers[0].rank} began with step {first} and did not report what it restored"
        yield claim(Code.RESTART_BEGAN_UNTOLD, f"{text}, {_known(unnamed, sure)}")


def _known(save: Save, sure: bool) -> str:
    if sure:
        return f"though a checkpoint of step {save.step} had been committed"
    return f"though it had saved step {save.step}, as far as is known"


def _further_than_planned(evidence: Analysis) -> Iterator[Claim]:
    """A trainer that tells neither checkpoints nor restores, and goes back further than its checkpoints are apart by
    the plan; or, where that says nothing, to its first step."""
    run, every = evidence.run, evidence.run.saves_every
    if run.checkpoints or any(restart.states for restart in evidence.restarts):
        return
    furthest, begin = 0, int(run.progress.begin[0]) if len(run.progress) else 0
    for restart in evidence.restarts:
        first, again = restart.epoch.first, restart.epoch.first - 1
        lost = furthest - again
        furthest = max(furthest, restart.epoch.last)
        from_scratch = again < run.stride
        if every is not None:
            far = lost > (every if from_scratch else IN_FLIGHT * every)
        else:
            far = lost > 0 and from_scratch and restart.epoch.begin - begin > IN_FLIGHT * S * (run.saves_every_s or 0)
        if restart.number and restart.newcomers and far and not evidence.saves.may_be_spoilt(restart.epoch.begin):
            planned = f", though it should save every {every} steps" if every is not None else ""
            text = f"the job restarted at step {first} and lost {lost} steps{planned}"
            yield unknown(Code.RESTART_FROM_SCRATCH, f"{text}; it reported no saves and no restores")


def _without_reason(evidence: Analysis) -> Iterator[Claim]:
    """A world that goes back without forming anew throws its work away. It says first what is wrong, or a fault is at
    work that may bring it to that."""
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
            went = f"from step {before.epoch.last} to step {restart.epoch.first - 1}"
            why = "its steps do not show what it said" if not_borne_out else "nobody told why"
            yield unknown(Code.RESTART_NO_REASON, f"the job went back {went} by its own decision, and {why}")


def _contradicted(evidence: Analysis) -> Iterator[Claim]:
    """Restores whose source is of another state, or lies where this run saved nothing, or was passed over as they say;
    or a peer, where none is there."""
    for each in _restores(evidence.restarts):
        if each.other_step is not None:
            text = f"{_said(each)}, but from {each.source}, which is of step {each.other_step}"
            yield unknown(Code.RESTART_OTHER_SOURCE, text)
        if each.elsewhere and not each.content:
            text = f"{_said(each)} from {each.source}, but this run saved it as {each.elsewhere}"
            yield unknown(Code.RESTART_OTHER_SOURCE, text)
        if each.source and any(item.place == each.source for item in each.passed_over):
            text = f"rank {each.rank} said it passed {each.source} over, and that it restored it"
            yield unknown(Code.RESTART_TOOK_PASSED_OVER, text)
        for item in each.passed_over if evidence.saves.store.sees_all else ():
            if not any(item.is_save(save) for save in evidence.saves.all):
                which = item.place or f"a checkpoint of step {item.step}"
                text = f"rank {each.rank} said it passed over {which}, and nobody ever began or saw such a one"
                yield unknown(Code.RESTART_PASSED_OVER_NONE, text)
    for restart in evidence.restarts[1:]:
        there = max(restart.from_a_member, 0) + evidence.run.stride
        for each in (each for each, step in restart.states if each.source == PEER and step >= there):
            text = f"{_said(each)} from a peer, but no peer that had done it was there"
            yield unknown(Code.RESTART_OTHER_SOURCE, text)


def _untold(evidence: Analysis) -> Iterator[Claim]:
    """Ranks that tell in one life what they restored and not in another; worlds that go back without a word."""
    tellers = {each.rank for restart in evidence.restarts for each, _ in restart.states}
    for restart in evidence.restarts[1:]:
        for each in restart.members:
            untold = each.restored is None or each.restored.step is None
            silent = untold and (each.before is None or restart.own_decision)
            if silent and each.rank in tellers and not each.lost:
                text = f"rank {each.rank} began again with step {each.first} and did not report what it restored"
                yield unknown(Code.RESTART_UNTOLD, f"{text}, though it reports it elsewhere")


def _without_an_end(evidence: Analysis) -> Iterator[Claim]:
    """Saves that a restart took or passed by, and of which nobody told whether they ended well, though their process
    went on with its steps. Held against those only who end each save before their next step without a fault."""
    run, usual = evidence.run, evidence.fault_free_saves
    if usual is None or run.lost:
        return
    mine = [save for save in evidence.saves.open if run.processes[save.process].rank in usual.punctual]
    known = Newest((save.at, save.step, save) for save in mine)
    for restart in evidence.restarts[1:]:
        lowest = min((step for _, step in restart.states), default=0)
        save = known.before(restart.moment, restart.did_not_pass, lowest)
        if save is not None and lowest > 0:
            rank = run.processes[save.process].rank
            text = f"rank {rank} never reported whether its checkpoint of step {save.step} was committed"
            yield unknown(Code.SAVE_WITHOUT_END, f"{text}, and the job restarted from step {lowest} after it")


def _other_content(evidence: Analysis) -> Iterator[Claim]:
    for each in _restores(evidence.restarts[1:]):
        if each.is_another:
            yield unknown(Code.RESTART_OTHER_CONTENT, each.is_another)


def _without_optimizer(evidence: Analysis) -> Iterator[Claim]:
    """A model's state without its optimizer's is half a state, unless the losses show that nothing was missing."""
    compared = evidence.comparison
    if compared is not None and compared.identical:
        return
    ranks = sorted({each.rank for each in _restores(evidence.restarts[1:]) if each.entered == ("model",)})
    if ranks:
        who, their = ("ranks", "their") if len(ranks) > 1 else ("rank", "its")
        text = f"{who} {listed([*map(str, ranks)])} restored {their} model, and nothing shows that {their} optimizer's"
        yield unknown(Code.RESTART_NO_OPTIMIZER, f"{text} state was restored")


def _restores(restarts: Sequence[Restart]) -> Iterator[Restore]:
    return (restore for restart in restarts for restore in restart.restores)


def _said(restore: Restore) -> str:
    return f"rank {restore.rank} said it restored step {restore.step}"


SCORES = (Restarts(),)
