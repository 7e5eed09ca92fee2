"""Which checkpoint each restart could have taken, and which it took."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.restarts import PassedOver, Restart, own_series
from harness.judge.facts.saves import Newest, Save

S = 10**9
IN_FLIGHT = 2  # intervals: a checkpoint that is being written when its job is killed is lost, too


@dataclass(frozen=True)
class Older:
    """A rank went on from an older state, though a newer sound checkpoint was there. `step` is `None` where the rank
    did not tell what it restored. `told`: somebody told that the newer one was committed. `named`: the restart named
    checkpoints that it passed over."""

    rank: int
    step: int | None
    went_on: int
    newer: Save
    told: bool
    named: bool

    @property
    def by(self) -> By:
        return By.SEEN if self.told else By.MISSING


@dataclass(frozen=True)
class PassedOverSound:
    """A rank named a checkpoint as damaged that nothing had damaged. `seen`: the harness had seen it whole."""

    rank: int
    save: Save
    seen: bool

    @property
    def by(self) -> By:
        return By.SEEN if self.seen else By.TOLD


@dataclass(frozen=True)
class FurtherBack:
    """A trainer that tells neither checkpoints nor restores went back further than its checkpoints are apart. `every`:
    steps from one to the next by the plan, if that tells it."""

    first: int
    lost: int
    every: int | None
    by: By = By.MISSING


def choices(evidence: Analysis) -> tuple[list[Older], list[PassedOverSound]]:
    there, older, sound = _There(evidence), list[Older](), list[PassedOverSound]()
    for restart in evidence.restarts:
        there.named += restart.passed_over
        if restart.own_decision:
            there.leave_behind(restart)
            continue
        newest, unnamed = there.newest(restart), there.newest(restart, lambda save: not there.is_named(save))
        older += _older(restart, unnamed, newest, there.told)
        for each, step in restart.states:
            if newest is not None and 0 < step < newest.step and not there.may_be_bad(newest, restart):
                sound.append(PassedOverSound(each.rank, newest, newest in evidence.saves.store.sights))
    return older, sound


def _older(restart: Restart, unnamed: Save | None, newest: Save | None, told: bool) -> Iterator[Older]:
    """`unnamed`: the newest of those that no restart has passed over until then. No reason is good enough to take none
    of them."""
    named = bool(restart.passed_over)
    for each, step in restart.states if told or restart.number else ():
        save = unnamed if step else newest
        if save is not None and step < save.step:
            yield Older(each.rank, step, each.went_on, save, told, named)
    first = restart.epoch.first
    silent = restart.number and restart.newcomers and not restart.restores  # one may not tell its step
    if silent and unnamed is not None and first <= unnamed.step and restart.from_a_member < first - 1:
        yield Older(restart.newcomers[0].rank, None, first, unnamed, told, named)


class _There:
    """The checkpoints that the restarts can take, one restart after the other. `told`: somebody told some as committed;
    else the harness saw some, or some were begun, and nobody told how they ended."""

    def __init__(self, evidence: Analysis):
        self._evidence, self._saves, self._margin_ns = evidence, evidence.saves, evidence.run.uncertainty_ns
        self.told = bool(evidence.saves.whole)
        known = self._saves.good if self.told else [*self._saves.seen, *self._saves.open]
        whole = [(save.last_at, save.step, save) for save in known if save.step >= 0]
        series = own_series(evidence.run, evidence.saves) if self.told else ()
        own = [each for each in whole if each[2].series in series] if self.told else whole
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


def further_back(evidence: Analysis) -> Iterator[FurtherBack]:
    """Of a trainer that tells neither checkpoints nor restores: further than its checkpoints are apart by the plan; or,
    where that says nothing, to its first step."""
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
            yield FurtherBack(first, lost, every)
