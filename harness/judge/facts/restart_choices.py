"""The checkpoints that each restart could have taken."""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restarts import PassedOver, Restart, own_series
from harness.judge.facts.saves import Newest, Save
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import acted_at


@dataclass(frozen=True)
class Choice:
    """`newest`: the newest sound save that was there. `unnamed`: the newest that no restart had passed over so far.
    `named`: how `newest` was passed over. `may_be_bad`: a fault may have damaged it; or it went with a lost node, if
    the harness never saw it in a store."""

    restart: Restart
    newest: Save | None
    unnamed: Save | None
    named: PassedOver | None
    may_be_bad: bool


def choices(evidence: Analysis) -> list[Choice]:
    """Returns the choice of each restart, without those by which the job went back by its own decision."""
    there, found = _There(evidence), list[Choice]()
    for restart in evidence.restarts:
        there.named += restart.passed_over
        if restart.own_decision:
            there.leave_behind(restart)
            continue
        newest, unnamed = there.newest(restart), there.newest(restart, lambda save: there.name_of(save) is None)
        named = None if newest is None else there.name_of(newest)
        found.append(Choice(restart, newest, unnamed, named, newest is None or _may_be_bad(evidence, newest, restart)))
    return found


class _There:
    """The checkpoints there at each restart, restart by restart. If none is told as committed: those that the harness
    saw, and those that were begun and whose end nobody told."""

    def __init__(self, evidence: Analysis):
        self._saves, self._margin_ns = evidence.saves, evidence.run.uncertainty_ns
        told = bool(evidence.saves.whole)
        known = self._saves.good if told else [*self._saves.seen, *self._saves.open]
        whole = [(save.last_at, save.step, save) for save in known if save.step >= 0]
        series = own_series(evidence.run, evidence.saves) if told else ()
        self._of_all = Newest(whole)
        self._of_series = Newest(each for each in whole if not told or each[2].series in series)
        self.named: list[PassedOver] = []  # passed over by this restart and earlier ones
        self._went_back: list[tuple[int, int]] = []  # when, and to which step; steps ascend

    def leave_behind(self, restart: Restart) -> None:
        """Excludes saves after the state that the job went back to by its own decision."""
        if restart.states:
            step = min(step for _, step in restart.states)
            while self._went_back and self._went_back[-1][1] >= step:
                self._went_back.pop()
            self._went_back.append((restart.moment, step))

    def name_of(self, save: Save) -> PassedOver | None:
        return next((item for item in self.named if item.is_save(save)), None)

    def newest(self, restart: Restart, good: Callable[[Save], bool] = lambda save: True) -> Save | None:
        sound, moment = self._saves.sound_at(restart.epoch.begin), restart.moment - self._margin_ns

        def there(save: Save) -> bool:
            place = bisect.bisect_left(self._went_back, save.last_at, key=lambda each: each[0])
            left_behind = place < len(self._went_back) and save.step > self._went_back[place][1]
            return sound(save) and not left_behind

        pool = self._of_series if self._of_series.before(moment, there) else self._of_all
        return pool.before(moment, lambda save: there(save) and good(save))


def _may_be_bad(evidence: Analysis, save: Save, restart: Restart) -> bool:
    if evidence.saves.store.is_hidden(save.last_at, restart.epoch.begin):
        return True
    if save.process < 0 or save in evidence.saves.store.sights:
        return False
    struck = (each for each in evidence.run.faults if each.kills and (each.injected or NEVER) <= restart.epoch.begin)
    later = (fault for fault in struck if save.last_at <= max(acted_at(fault), *fault.strikes, 0))
    node = evidence.run.processes[save.process].node
    return any(each.get("node") == node and each.get("rank") is None for fault in later for each in fault.targets)
