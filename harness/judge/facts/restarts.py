"""Finds a run's restarts: which processes took part, which state each process restored, and which saves existed."""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from harness.evidence.by_time import Window, touches
from harness.judge.facts import tellers
from harness.judge.facts.known import By, Word
from harness.judge.facts.saves import Damage, Newest, Save, Saves
from harness.timeline.joined_steps import PEER, SCRATCH
from harness.timeline.lineage import NEVER, step_of
from harness.timeline.lookups import Moments, first_from, grouped
from harness.timeline.save_events import family
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import Epoch, Stretch, Timeline
from harness.units import counted


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that a process found but did not restore."""

    step: int | None
    place: str
    by = tellers.PASSED_OVER

    def is_save(self, save: Save) -> bool:
        return self.names(save.step, save.path)

    def names(self, step: int, path: str) -> bool:
        """Returns True if this checkpoint may be the save of `step` at `path`. An empty `path` means that the path is
        not logged."""
        if self.place and path:
            mine, theirs = f"/{self.place.strip('/')}/", f"/{path.strip('/')}/"
            if mine.startswith(theirs) or theirs.endswith(mine):
                return True
        if self.place and not path and self.step is None:
            return True  # nothing shows that the save is a different one
        return self.step is not None and self.step == step

    def is_damaged(self, damage: Damage) -> bool:
        if self.place:
            return damage.is_named(self.place)
        return self.step is None or self.step == damage.step  # without a path and a step, any checkpoint may be meant


class Restore(NamedTuple):
    """The state that a process logged as restored, and the step that the process did next."""

    process: int  # row in Timeline.processes
    rank: int  # global rank
    at: int  # when
    step: int | None  # 0: from scratch; `None`: it is not known
    source: str
    other_step: int | None  # the step saved at its source, if that is another one
    elsewhere: str  # where this run saved the same name, if never at `source`
    content: str  # a label of what was restored; empty: not told
    saved: str  # the content that was committed for this step
    entered: tuple[str, ...]  # restored parts of the state, as `model`
    parts: tuple[str, ...]  # paths of the parts, if there were several
    passed_over: tuple[PassedOver, ...]
    went_on: int  # the step that the process did next
    by: By = tellers.SEEN  # a process reports its own restore

    @property
    def digests(self) -> Word:
        """Returns the time of the restore, marked as the trainer's claim, because only the trainer knows which content
        it restored."""
        return Word(self.at)

    @property
    def said(self) -> str:
        """Returns a text that says which rank restored which step."""
        return f"rank {self.rank} said it restored step {self.step}"

    @property
    def is_another(self) -> str:
        """Returns a text that says that the restored content differs from the committed content of this step, or an
        empty text."""
        if not self.content or not self.saved or self.content == self.saved:
            return ""
        if self.source == PEER:
            return f"rank {self.rank} took another state from a peer than the peer gave"
        where = self.source or "a state"
        return f"rank {self.rank} restored {where}, which no longer holds what was committed there"

    def took(self, damage: Damage, margin_ns: int) -> bool:
        """Returns True if this restore used the damaged checkpoint before the harness saw a new checkpoint in its
        place."""
        if not self.step or self.step != damage.step or not damage.at + margin_ns < self.at <= damage.unseen_until:
            return False
        return damage.is_named(self.source) if self.source else not damage.copies


class Member(NamedTuple):
    """A process that did steps after a restart."""

    stretch: Stretch  # its steps after the restart
    rank: int  # global rank
    lost: int  # lines that its log is known to lack
    restored: Restore | None  # what it restored for these steps
    restores: Sequence[Restore]  # also those while other processes went on

    @property
    def is_new(self) -> bool:
        """Returns True if the process had done no step before this restart."""
        return self.stretch.before is None


@dataclass(frozen=True)
class Restart:
    """One restart of the job, with its processes. The first start of the job has the number 0. In the log of a restore
    drill or second restart, start 0 restores a save, and `states` lists this restore."""

    number: int  # 0: the start of the job
    epoch: Epoch  # the steps that follow
    members: Sequence[Member]  # the processes that did these steps
    own_decision: bool  # the same world rolled back without forming anew
    moment: int  # earliest time at which a member may have chosen a checkpoint
    looks: Window  # from the first try to restart until the first step: time in which the job looked for checkpoints
    passed_over: Sequence[PassedOver]  # by members, or by processes that tried to start before
    by = tellers.RESTART

    @cached_property
    def restores(self) -> list[Restore]:
        return [member.restored for member in self.members if member.restored]

    @cached_property
    def states(self) -> list[tuple[Restore, int]]:
        """Returns a pair (restore, step) for each restore of which the step is known."""
        return [(each, each.step) for each in self.restores if each.step is not None]

    @cached_property
    def from_a_member(self) -> int:
        """Returns the last step that any process of this restart did before the restart, or -1 if all are new."""
        before = (member.stretch.before for member in self.members)
        return max((step for step in before if step is not None), default=-1)

    def did_not_pass(self, save: Save) -> bool:
        return not any(item.is_save(save) for item in self.passed_over)

    @property
    def newcomers(self) -> list[Member]:
        return [member for member in self.members if member.is_new]


def restarts(run: Timeline, saves: Saves) -> list[Restart]:
    members = grouped((stretch.epoch, _member(run, saves, stretch)) for stretch in run.stretches)
    tried = Moments((process.started, process.fallback) for process in run.processes if process.fallback)
    found, until, starts = list[Restart](), run.begin, sorted(process.started for process in run.processes)
    for number, epoch in enumerate(run.epochs):
        mine = members.get(number, [])
        moments = [run.processes[each.stretch.process].started for each in mine if each.is_new]
        moments += [each.restored.at for each in mine if not each.is_new and each.restored]
        passed_over = [item for each in mine if each.restored for item in each.restored.passed_over]
        passed_over += [item for items in tried.within(until, epoch.begin) for item in passed_over_by(items)]
        own_decision = number > 0 and run.epochs[number - 1].world == epoch.world
        moment = min(moments, default=epoch.begin)
        by_workers = bool(run.launchers) and all(each.is_new for each in mine)  # survivors may look at once
        since = min(moment, first_from(starts, until) if by_workers else until) - run.uncertainty_ns
        found.append(Restart(number, epoch, mine, own_decision, moment, (since, epoch.begin), passed_over))
        until = max([until, *(each.stretch.end for each in mine)])
    return found


class InVain(NamedTuple):
    """The longest series of restarts without progress. A restart is without progress if the job goes on from no later
    step than before."""

    restarts: int
    step: int  # the step from which the job went on, at the latest

    @property
    def words(self) -> str:
        row = f"{counted(self.restarts, 'restart')} in a row without progress"
        return f"{row}: none went on from a later step than {self.step}"


def in_vain(run: Timeline, furthest: Callable[[int], int], excused: Sequence[Window] = ()) -> InVain:
    """Finds the longest series of restarts without progress. Restarts without any step count, too. A restart is ignored
    if a window of `excused` overlaps the time since the previous start. `furthest` returns the job's step at a given
    time."""
    most, row, latest = InVain(0, 0), 0, -1
    for (before, came), (at, first) in itertools.pairwise(_starts(run)):
        latest = max(came, latest)
        if first > latest or (came < 0 and furthest(at) > furthest(before)):  # else others did steps meanwhile
            row = 0
        elif not touches(excused, before, at):
            row += 1
        most = max(most, InVain(row, max(1, first, latest) - 1))
    return most


def _starts(run: Timeline) -> Iterator[tuple[int, int]]:
    begins, tries = [epoch.begin for epoch in run.epochs], dict[int, list[int]]()
    told = {process.rank for process in run.processes if process.first_step is not None}
    idle = (each for each in run.processes if each.first_step is None and each.rank in told)
    for (number, _), mine in grouped(((bisect.bisect(begins, p.started), p.rank), p.started) for p in idle).items():
        tries[number] = max(tries.get(number, []), mine, key=len)
    for number, epoch in enumerate(run.epochs):
        yield from ((at, -1) for at in tries.get(number, ()))
        yield epoch.begin, epoch.first
    yield from ((at, -1) for at in tries.get(len(begins), ()) if not run.finished)


def without_a_step(run: Timeline, saves: Saves) -> Iterator[Restore]:
    """Yields each restore after which the process did no step, so that the restore belongs to no restart."""
    for number, process in enumerate(run.processes):
        yield from (restore(run, saves, number, told, NEVER) for told in process.idle)


def own_series(run: Timeline, saves: Saves) -> frozenset[str]:
    """Returns the series of checkpoints (by file name) that this job may restore. A series that the job never restored
    is left out if all its saves hold only the model, or were made by failing processes after their last steps."""
    order, places = run.rows_by_process

    def dumped(save: Save) -> bool:
        if save.process < 0 or run.processes[save.process].exit_reason not in ("error", "peer lost"):
            return False
        begin, end = places[save.process : save.process + 2]
        return save.last_at >= (run.steps.end[order[end - 1]] if begin < end else 0)

    usual = {save.series for save in saves.whole if save.holds != ("model",) and not dumped(save)}
    return frozenset(usual | {family(each.restored.get("source")) for each in run.stretches if each.restored})


def _member(run: Timeline, saves: Saves, stretch: Stretch) -> Member:
    process = run.processes[stretch.process]
    told = [*([(stretch.restored, stretch.first)] if stretch.restored else ()), *stretch.later]
    restores = [restore(run, saves, stretch.process, *each) for each in told]
    return Member(stretch, process.rank, process.lost, restores[0] if stretch.restored else None, restores)


def restore(run: Timeline, saves: Saves, process: int, told: Mapping[str, Any], went_on: int) -> Restore:
    step, source = step_of(told), str(told.get("source") or "")
    until = told["at"] + run.uncertainty_ns
    other = None if step is None or source == SCRATCH else saves.other_at_path(source, step, until)
    other = 0 if step and source == SCRATCH else other
    return Restore(
        process=process,
        rank=run.processes[process].rank,
        at=told["at"],
        step=step,
        source=source,
        other_step=other,
        elsewhere=saves.elsewhere(source, until),
        content=str(told.get("content") or ""),
        saved=saves.content_of(step, source, told["at"]) or str(told.get("saved") or ""),
        entered=tuple(told.get("entered") or ()),
        parts=tuple(told.get("parts") or ()),
        passed_over=tuple(passed_over_by(told.get("fallback") or ())),
        went_on=went_on,
    )


def passed_over_by(items: Iterable[object]) -> list[PassedOver]:
    """Returns the checkpoints that the field `fallback` of a restore names."""
    told = (item for item in items if isinstance(item, Mapping))
    return [PassedOver(each.get("step"), str(each.get("path") or each.get("source") or "")) for each in told]


# The checkpoints that each restart could have used


@dataclass(frozen=True)
class Choice:
    """The newest saves that one restart could have restored, and whether a fault may have damaged the newest one."""

    restart: Restart
    newest: Save | None  # the newest sound save
    unnamed: Save | None  # the newest sound save that no restart had passed over so far
    unsure: Save | None  # the newest such save, even if a fault disturbed the store while it was made
    named: PassedOver | None  # the report that `newest` was passed over
    may_be_bad: bool  # there is no `newest`, or a fault may have damaged, hidden or lost it
    disturbed: bool  # since `newest` was committed, a fault disturbed the store


def choices(run: Timeline, saves: Saves, restarts: Sequence[Restart]) -> list[Choice]:
    """Returns the newest saves that each restart could restore, but skips rollbacks by the job's own decision."""
    there, found = _There(run, saves), list[Choice]()
    for restart in restarts:
        there.named += restart.passed_over
        if restart.own_decision:
            there.leave_behind(restart)
            continue
        newest, unnamed = there.newest(restart), there.newest(restart, named=False)
        unsure = there.newest(restart, named=False, outages=False)
        named = None if newest is None else there.name_of(newest)
        disturbed = newest is not None and touches(saves.outages, newest.last_at, restart.epoch.begin)
        may_be_bad = newest is None or _may_be_bad(run, saves, newest, restart, disturbed)
        found.append(Choice(restart, newest, unnamed, unsure, named, may_be_bad, disturbed))
    return found


class _There:
    def __init__(self, run: Timeline, saves: Saves):
        self._saves, self._margin_ns, told = saves, run.uncertainty_ns, bool(saves.whole)
        known = saves.good if told else [*saves.seen, *saves.open]
        whole = [(save.last_at, save.step, save) for save in known if save.step >= 0]
        series = own_series(run, saves) if told else ()
        self._of_all = Newest(whole)
        self._of_series = Newest(each for each in whole if not told or each[2].series in series)
        self.named: list[PassedOver] = []  # passed over by this restart and earlier ones
        self._went_back: list[tuple[int, int]] = []  # time and step of each rollback; steps ascend

    def leave_behind(self, restart: Restart) -> None:
        if restart.states:
            step = min(step for _, step in restart.states)
            while self._went_back and self._went_back[-1][1] >= step:
                self._went_back.pop()
            self._went_back.append((restart.moment, step))

    def name_of(self, save: Save) -> PassedOver | None:
        return next((item for item in self.named if item.is_save(save)), None)

    def newest(self, restart: Restart, named: bool = True, outages: bool = True) -> Save | None:
        sound, moment = self._saves.sound_at(restart.epoch.begin, outages), restart.moment - self._margin_ns

        def there(save: Save) -> bool:
            place = bisect.bisect_left(self._went_back, save.last_at, key=lambda each: each[0])
            left_behind = place < len(self._went_back) and save.step > self._went_back[place][1]
            return sound(save) and not left_behind

        pool = self._of_series if self._of_series.before(moment, there) else self._of_all
        return pool.before(moment, lambda save: there(save) and (named or self.name_of(save) is None))


def _may_be_bad(run: Timeline, saves: Saves, save: Save, restart: Restart, disturbed: bool) -> bool:
    hidden = saves.store.is_hidden(save.last_at, restart.epoch.begin)
    if hidden and (not disturbed or touches(saves.outages, *restart.looks)):
        return True
    if save.process < 0 or save in saves.store.sights:
        return False
    struck = (each for each in run.faults if each.kills and (each.injected or NEVER) <= restart.epoch.begin)
    later = (fault for fault in struck if save.last_at <= max(acted_at(fault), *fault.strikes, 0))
    node = run.processes[save.process].node
    return any(each.get("node") == node and each.get("rank") is None for fault in later for each in fault.targets)
