"""Explores the crash states of a job's checkpoint folder: records three saves, and restores from each state.

The run that is recorded is in `REPORTS/<run-id>/base`, whole restarts are in `REPORTS/<run-id>/cells`, forked ones in
`REPORTS/<run-id>/cells/forked`. Before any state is judged, the job restarts from each explored save as it was when
the job called it finished. A bad answer of forked ranks counts only if a whole restart of the job on that state is bad,
too.
"""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.backends.contract import Backend
from harness.campaign import restarts
from harness.errors import CannotRunError, ChaosError
from harness.evidence.restarts import Restart
from harness.explore import recorded_job
from harness.explore.answers import BAD, OPEN, Answer, Came, Usual, answer
from harness.explore.crash_states import Crashes, CrashState
from harness.explore.disk import Disk, disk_of
from harness.explore.file_systems import PROFILES, Change, changes_of
from harness.explore.recorded_job import Recorded
from harness.explore.restores import ForkedRestores, Next, Restarts, Restores, Wanted, ranks_of
from harness.judge.verdict import Verdict
from harness.plan.run_plan import Plan
from harness.report import write_files
from harness.report.strict_json import json_text
from harness.run.stop import StopRequest
from harness.units import counted

CHOICE_S_MAX = 60.0  # to choose the states of one kind of file system


@dataclass(frozen=True)
class State:
    """A state of the checkpoint folder after a crash, from which the job is to restore. `id` is its name in the
    exploration; `due`: the step of the last finished save."""

    id: str
    profile: str
    crash: CrashState
    due: int


@dataclass
class Profile:
    """The states that crashes may leave on one kind of file system. `open_changes`: the most changes that one crash may
    keep or lose, so that one moment has at most two to the power of this number of states."""

    name: str
    changes: Sequence[Change]
    open_changes: int
    moments: int
    states: list[State]
    chosen: int
    equal: int  # chosen states that hold the same files as another one
    cut: bool = False  # there are more states: the time to choose them was up

    @functools.cached_property
    def by_operation(self) -> Mapping[int, Sequence[Change]]:
        found: dict[int, list[Change]] = {}
        for each in self.changes:
            found.setdefault(each.operation, []).append(each)
        return found


@dataclass(frozen=True)
class Tried:
    state: State
    answer: Answer
    seconds: float


@dataclass
class Exploration:
    """The result of trying a job's restore in the states of its checkpoint folder that crashes may leave. `why` is the
    reason why nothing can be said about the job, or empty."""

    run_id: str
    trainer: str
    form: str
    recorded: Recorded
    profiles: list[Profile]
    tried: list[Tried] = field(default_factory=list)
    why: str = ""
    tolerance: float | None = None  # relative difference of losses that was allowed
    interrupted: bool = False
    seconds: float = 0.0  # of the restores

    @property
    def planned(self) -> int:
        return sum(len(each.states) for each in self.profiles)

    @property
    def left(self) -> int:
        """Returns how many planned states were not tried."""
        return self.planned - len(self.tried)

    def came(self, profile: str = "") -> Counter[Came]:
        return Counter(each.answer.came for each in self.tried if profile in ("", each.state.profile))

    @property
    def verdict(self) -> Verdict:
        came = self.came()
        if any(came[bad] for bad in BAD):
            return Verdict.FAIL
        unsure = self.why or self.left or self.interrupted or not self.tried or any(came[each] for each in OPEN)
        unsure = unsure or any(each.cut for each in self.profiles)
        return Verdict.INCONCLUSIVE if unsure else Verdict.PASS

    def worst(self) -> list[Tried]:
        """Returns, for each kind of file system and of bad restore, the state that lost the fewest changes."""
        smallest: dict[tuple[str, Came], Tried] = {}
        for each in self.tried:
            key = each.state.profile, each.answer.came
            if each.answer.came in BAD and (
                key not in smallest or self.lost(each.state) < self.lost(smallest[key].state)
            ):
                smallest[key] = each
        return list(smallest.values())

    def lost(self, state: State) -> int:
        """Returns how many changes of the disk are lost in this state, of those up to its crash."""
        changes = self.profile(state.profile).changes
        return sum(each.operation <= state.crash.during and each.number not in state.crash.kept for each in changes)

    def profile(self, name: str) -> Profile:
        return next(each for each in self.profiles if each.name == name)


def states_of(recorded: Recorded, name: str, limit_s: float = math.inf) -> Profile:
    """Returns the states to try on one kind of file system, those with the most different crashes first. Stops choosing
    after this many seconds."""
    until = time.monotonic() + limit_s
    operations = recorded.operations
    changes = changes_of(name, operations)
    crashes = Crashes(changes, recorded.saves[0].end, len(operations))
    names = {each.inode: each.path for each in operations}
    number, cut, seen, states, places = -1, False, set[int](), list[tuple[int, State]](), Counter[int]()
    for number, crash in enumerate(crashes.chosen_states(names)):  # the latest crash first: the most saves are due then
        if cut := time.monotonic() > until:
            break
        key = hash(_disk(name, changes, crash).key)
        if key not in seen:
            seen.add(key)
            states.append((places[crash.during], State(f"{name}-{number}", name, crash, recorded.due(crash.during))))
            places[crash.during] += 1
    ordered = [state for _, state in sorted(states, key=lambda pair: pair[0])]
    moments = crashes.moments()
    most = max((len(crashes.left_open(during)) for during in moments), default=0)
    chosen = number if cut else number + 1
    return Profile(name, changes, most, len(moments), ordered, chosen, chosen - len(ordered), cut)


def _disk(profile: str, changes: Sequence[Change], crash: CrashState) -> Disk:
    return disk_of(changes, crash.kept, empty_folders=not PROFILES[profile].prunes_empty_folders)


def make_state(recorded: Recorded, profile: Profile, state: State, folder: pathlib.Path) -> None:
    """Writes the files of a state of the checkpoint folder into an empty folder."""
    with recorded.data.open("rb") as data:
        _disk(profile.name, profile.changes, state.crash).write(folder, data)


def make_save(recorded: Recorded, end: int, folder: pathlib.Path) -> None:
    """Makes the files as they were after the first `end` operations, in an empty folder."""
    changes = changes_of("posix", recorded.operations[:end], split=False)
    with recorded.data.open("rb") as data:
        disk_of(changes, range(len(changes))).write(folder, data)


@dataclass(frozen=True)
class Setting:
    """The options of an exploration of crash states: where, for how long, and how many states. `states` is the largest
    number of states to try, or 0."""

    reports: pathlib.Path
    backend: Backend
    stop: StopRequest
    tell: Callable[[str], None]
    budget_s: float
    profiles: Sequence[str]
    states: int = 0


def explore(plan: Plan, setting: Setting) -> Exploration:
    """Records a job's saves, then tries its restore in each state of the checkpoint folder that a crash may leave.
    Raises `ChaosError` if nothing can be explored."""
    if plan.backend != "local" or plan.workload.checkpoint.store != "directory":
        raise CannotRunError("crash states are made in a folder of this machine: use the local backend, and a folder")
    with setting.stop.attended():
        return _Explorer(plan, setting).run()


class _Explorer:
    def __init__(self, plan: Plan, setting: Setting) -> None:
        self.plan, self.setting = plan.without_faults(f"{plan.run_id}-base"), setting
        self.name = plan.run_id
        self.folder = setting.reports.resolve() / plan.run_id
        self.after: dict[int, Restart] = {}  # save → the restart from it undamaged
        self.wrong = ""  # why the restart from a save undamaged is not right

    def run(self) -> Exploration:
        restarts.own_folder(self.folder)
        restarts.own_folder(self.folder / "cells")
        write_files({"plan.json": json_text(self.plan.again(self.name).to_json())}, self.folder)
        self.setting.tell("a run without faults saves three times, and its checkpoint folder is recorded")
        self.recorded = recorded_job.record(self.plan, self.folder / "base", self.setting.stop)
        profiles = [states_of(self.recorded, name, CHOICE_S_MAX) for name in self.setting.profiles]
        trainer = self.plan.workload.trainer.in_words()
        self.found = Exploration(self.name, trainer, "", self.recorded, profiles)
        self.setting.tell(
            f"{counted(len(self.recorded.operations), 'operation')}; {counted(self.found.planned, 'state')} to restore"
        )
        try:
            self._restore()
        except ChaosError as error:  # the restores up to then have their answers
            self.found.why = str(error)
        self.found.interrupted = self.setting.stop.asked
        return self.found

    def _restore(self) -> None:
        begin = time.monotonic()
        ranks = ranks_of(self.plan)
        whole = self._whole()
        restores: Restores = whole
        if isinstance(ranks, str):
            self.found.form = f"{whole.words}, as {ranks}"
        else:
            cells = self.folder / "cells"
            base = self.folder / "base"
            restores = ForkedRestores(self.plan, base, cells, self.setting.stop, self.recorded.tellers, ranks)
            self.found.form = restores.words
        restores.do_all(self._one_by_one(begin))
        if self.wrong and restores is not whole and not self.setting.stop.asked:
            self.found.form = f"{whole.words}, as forked ranks did not restore: {self.wrong}"
            self.setting.tell(self.found.form)
            self.wrong = ""
            self.after.clear()
            self.found.tried.clear()
            restores = whole
            restores.do_all(self._one_by_one(begin))
        self.found.why = self.wrong
        self.found.seconds = time.monotonic() - begin
        if restores is not whole and not self.setting.stop.asked:
            self._confirm()

    def _whole(self) -> Restarts:
        cells = self.folder / "cells"
        return Restarts(self.plan, self.folder / "base", cells, self.setting.stop, self.setting.backend)

    def _one_by_one(self, begin: float) -> Next:
        todo = self._wanted()

        def next_one() -> Wanted | None:
            late = self.after and time.monotonic() - begin > self.setting.budget_s
            return None if late else next(todo, None)

        return next_one

    def _wanted(self) -> Iterator[Wanted]:
        """Yields the restores to try, in order: from each undamaged save, the last one first, then from each state."""
        for save in reversed(self.recorded.saves):
            make = functools.partial(make_save, self.recorded, save.end)
            yield Wanted(f"save-{save.step}", make, functools.partial(self._hear_save, save.step))
            if self.wrong:
                return
        usual = Usual(self.recorded.losses, {step: found.losses for step, found in self.after.items()})
        self.usual, self.found.tolerance = usual, usual.tolerance
        in_turn = itertools.zip_longest(*(profile.states for profile in self.found.profiles))
        mixed = [state for turn in in_turn for state in turn if state is not None]
        for state in mixed[: self.setting.states or None]:
            profile = self.found.profile(state.profile)
            make = functools.partial(make_state, self.recorded, profile, state)
            yield Wanted(state.id, make, functools.partial(self._hear, state))

    def _hear_save(self, step: int, found: Restart, ended: str, seconds: float) -> None:
        last = step == self.recorded.saves[-1].step
        if found.step == step and found.losses and not found.told and not ended:
            self.after[step] = found
        elif last:
            did = ended or ("it restored nothing" if found.step is None else f"it restored step {found.step}")
            did = did if ended or found.losses or found.step is None else f"{did}, and told no loss"
            self.wrong = f"the job did not restore the undamaged save of step {step}: {did}"

    def _hear(self, state: State, found: Restart, ended: str, seconds: float) -> None:
        given = answer(found, ended, state.due, self.usual)
        self.found.tried.append(Tried(state, given, seconds))
        if given.came in BAD:
            self.setting.tell(f"{state.id}: {given.came}: {given.detail} ({state.crash.why})")
        elif len(self.found.tried) % 100 == 0:
            self.setting.tell(f"{len(self.found.tried)} of {self.found.planned} states")

    def _confirm(self) -> None:
        """Restarts the whole job on the smallest state of each kind of bad restore, to confirm it. If that answer is
        good, the forked ranks were at fault, and nothing is blamed by their answers."""
        for each in self.found.worst():
            self.setting.tell(f"{each.state.id}: {each.answer.came}; a whole restart of the job must confirm it")
            again = self._restarted(each.state)
            if again is None or again.came not in BAD:
                did = "nothing" if again is None else again.came
                self._doubt(each, f"{each.answer.came} with forked ranks, {did} in a whole restart of the job")

    def _restarted(self, state: State) -> Answer | None:
        heard: list[Answer] = []

        def hear(found: Restart, ended: str, seconds: float) -> None:
            heard.append(answer(found, ended, state.due, self.usual))

        make = functools.partial(make_state, self.recorded, self.found.profile(state.profile), state)
        wanted = iter([Wanted(state.id, make, hear)])
        self._whole().do_all(lambda: next(wanted, None))
        return heard[0] if heard else None

    def _doubt(self, doubted: Tried, why: str) -> None:
        key = doubted.state.profile, doubted.answer.came
        self.found.tried = [
            replace(each, answer=Answer(Came.UNKNOWN, each.answer.step, why))
            if (each.state.profile, each.answer.came) == key
            else each
            for each in self.found.tried
        ]
