"""Records a job's saves, and restores the job from states of the checkpoint folder that a crash can leave.

The recorded run is in `REPORTS/<run-id>/base`, whole restarts of the job are in `REPORTS/<run-id>/cells`, and restores
in forked ranks are in `REPORTS/<run-id>/cells/forked`. Before any crash state is judged, the job restarts from each
undamaged save, from an empty folder and from mixed weights of two saves, because the right results of these restarts
are known. Of several states with the same file names, only the first one is also tried until the job's next save is
finished. A bad restore in forked ranks counts only if a restart of the whole job from the same state is bad, too."""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.backends.contract import Backend
from harness.campaign import restarts
from harness.errors import CannotRunError, ChaosError, UsageError
from harness.evidence.restarts import Restart
from harness.explore import recorded_job
from harness.explore.answers import BAD, OPEN, Answer, Came, End, Usual, answer
from harness.explore.crash_states import Crashes, CrashState
from harness.explore.disk import Disk, disk_of
from harness.explore.file_systems import PROFILES, Change, changes_of
from harness.explore.mixed_weights import mix
from harness.explore.recorded_job import Recorded
from harness.explore.restores import ForkedRestores, Next, Restarts, Restores, Wanted, ranks_of
from harness.judge.verdict import Verdict
from harness.plan.run_plan import Plan
from harness.report import write_files
from harness.report.strict_json import json_text
from harness.run.stop import StopRequest
from harness.timeline.save_events import COMMITTED
from harness.units import counted

CHOICE_S_MAX = 60.0  # to choose the states of one kind of file system
LOST_MAX = 5_000_000  # lost changes in all states of one kind of file system, for the sake of memory
ELSEWHERE = "it has saves outside of the folder, and restores from there in each state"


@dataclass(frozen=True)
class State:
    """A state of the checkpoint folder to restore from. `id` is the name of the state, and `due` is the step of the
    last save that was finished before the crash. `names` holds the paths of the state's files and folders."""

    id: str
    profile: str
    crash: CrashState
    due: int
    names: frozenset[str]


@dataclass
class Profile:
    """The states that crashes may leave on one kind of file system. `open_changes` is the largest number n of changes
    that one crash can keep or lose, so that one crash has at most 2^n states."""

    name: str
    changes: Sequence[Change]
    open_changes: int
    moments: int
    states: list[State]
    chosen: int
    equal: int  # chosen states that hold the same files as another one
    cut: bool = False  # there are more states: the time to choose them was up
    together: str = ""  # why no crash between two of the saves can be tried, or empty

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
    followed: bool = False  # until the next save was finished


@dataclass
class Exploration:
    """The result of trying a job's restore in the states of its checkpoint folder that crashes may leave. `why` is the
    reason why nothing can be said about the job, or an empty text."""

    run_id: str
    trainer: str
    form: str
    recorded: Recorded
    profiles: list[Profile]
    tried: list[Tried] = field(default_factory=list)
    why: str = ""
    tolerance: float | None = None  # relative difference of losses that was allowed
    interrupted: bool = False
    controls: int = 0  # restores with known answers
    seconds: float = 0.0  # of the restores

    @property
    def planned(self) -> int:
        return sum(len(each.states) for each in self.profiles)

    @property
    def left(self) -> int:
        return self.planned - len(self.tried)

    def came(self, profile: str = "") -> Counter[Came]:
        return Counter(each.answer.came for each in self.tried if profile in ("", each.state.profile))

    @property
    def verdict(self) -> Verdict:
        came = self.came()
        if any(came[bad] for bad in BAD):
            return Verdict.FAIL
        unsure = self.why or self.left or self.interrupted or not self.tried or any(came[each] for each in OPEN)
        unsure = unsure or any(each.cut or each.together for each in self.profiles)
        return Verdict.INCONCLUSIVE if unsure else Verdict.PASS

    def worst(self) -> list[Tried]:
        """Returns, for each file system and each kind of bad restore, the state that lost the fewest changes."""
        smallest: dict[tuple[str, Came], Tried] = {}
        for each in self.tried:
            key = each.state.profile, each.answer.came
            if each.answer.came in BAD and (
                key not in smallest or len(each.state.crash.lost) < len(smallest[key].state.crash.lost)
            ):
                smallest[key] = each
        return list(smallest.values())

    def profile(self, name: str) -> Profile:
        return next(each for each in self.profiles if each.name == name)


def states_of(recorded: Recorded, name: str, limit_s: float = math.inf) -> Profile:
    """Returns the states to try on one kind of file system: one state for each moment of a crash, then a second one for
    each, and so on. Stops choosing after `limit_s` seconds, or when the states reach their memory limit."""
    until = time.monotonic() + limit_s
    changes = changes_of(name, recorded.operations)
    crashes = _crashes(recorded, changes)
    number, held, cut, seen, states, places = -1, 0, False, set[int](), list[tuple[int, State]](), Counter[int]()
    for number, crash in _chosen(recorded, crashes):
        held += len(crash.lost)
        if cut := time.monotonic() > until or held > LOST_MAX:
            break
        disk = _disk(name, changes, crash)
        key = hash(disk.key)
        if key not in seen:
            seen.add(key)
            state = State(f"{name}-{number}", name, crash, recorded.due(crash.during), disk.names)
            states.append((places[crash.during], state))
            places[crash.during] += 1
    ordered = [state for _, state in sorted(states, key=lambda pair: pair[0])]
    chosen = number if cut else number + 1
    told = crashes.open_max, len(crashes.moments)
    return Profile(name, changes, *told, ordered, chosen, chosen - len(ordered), cut, _together(recorded, changes))


def _together(recorded: Recorded, changes: Sequence[Change]) -> str:
    for one, other in itertools.pairwise(recorded.saves):
        if not any(one.end <= each.operation < other.end for each in changes):
            called = f"the job called the saves of steps {one.step} and {other.step} finished with no change between"
            return f"{called}; each must be told ({COMMITTED}) when it is finished"
    return ""


def state_of(recorded: Recorded, name: str, identity: str, limit_s: float = CHOICE_S_MAX) -> tuple[Profile, State]:
    """Returns the state named `identity`, and a profile that holds only this state. Raises `ChaosError` if the
    exploration has no state of this name, or if the search takes longer than `limit_s`."""
    until = time.monotonic() + limit_s
    changes = changes_of(name, recorded.operations)
    for number, crash in _chosen(recorded, _crashes(recorded, changes)):
        if f"{name}-{number}" == identity:
            state = State(identity, name, crash, recorded.due(crash.during), _disk(name, changes, crash).names)
            return Profile(name, changes, 0, 0, [state], 1, 0), state
        if time.monotonic() > until:
            raise ChaosError(f"{identity}: was not found within {limit_s:g} s; use a faster machine")
    raise UsageError(f"this exploration has no state {identity}")


def _crashes(recorded: Recorded, changes: Sequence[Change]) -> Crashes:
    return Crashes(changes, [save.end for save in recorded.saves], len(recorded.operations))


def _chosen(recorded: Recorded, crashes: Crashes) -> Iterator[tuple[int, CrashState]]:
    """Yields the states of the latest crash first, because most saves are finished before the latest crash."""
    return enumerate(crashes.chosen_states({each.inode: each.path for each in recorded.operations}))


def _disk(profile: str, changes: Sequence[Change], crash: CrashState) -> Disk:
    return disk_of(changes, crash.kept, empty_folders=not PROFILES[profile].prunes_empty_folders)


def make_state(recorded: Recorded, profile: Profile, state: State, folder: pathlib.Path) -> None:
    with recorded.data.open("rb") as data:
        _disk(profile.name, profile.changes, state.crash).write(folder, data)


def make_save(recorded: Recorded, end: int, folder: pathlib.Path) -> None:
    """Writes into an empty folder the checkpoint files as they were after the first `end` operations."""
    with recorded.data.open("rb") as data:
        _saved(recorded, end).write(folder, data)


def _saved(recorded: Recorded, end: int) -> Disk:
    changes = changes_of("posix", recorded.operations[:end], split=False)
    return disk_of(changes, range(len(changes)))


def make_mixed(recorded: Recorded, folder: pathlib.Path) -> int:
    """Writes into an empty folder a mixture of two saves: the last explored save, with some weights of the previous
    save. Returns how many files the mixing of weights changed."""
    *_, before, last = recorded.saves
    make_save(recorded, last.end, folder)
    with tempfile.TemporaryDirectory(dir=folder.parent) as older:
        make_save(recorded, before.end, pathlib.Path(older))
        return mix(folder, pathlib.Path(older))


@dataclass(frozen=True)
class Setting:
    reports: pathlib.Path
    backend: Backend
    stop: StopRequest
    tell: Callable[[str], None]
    budget_s: float
    profiles: Sequence[str]
    states: int = 0


def explore(plan: Plan, setting: Setting) -> Exploration:
    """Records a job's saves, then restores the job from each state that a crash can leave. Raises `ChaosError` if
    nothing can be explored."""
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
        self.wrong = ""  # why the restart from a save undamaged, or from an empty folder, is not right
        self.blind = ""  # why right answers prove nothing

    def run(self) -> Exploration:
        restarts.own_folder(self.folder)
        restarts.own_folder(self.folder / "cells")
        write_files({"plan.json": json_text(self.plan.again(self.name).to_json())}, self.folder)
        self.setting.tell("a run without faults saves until it removes a save, and its checkpoint folder is recorded")
        self.recorded = recorded_job.record(self.plan, self.folder / "base", self.setting.stop)
        profiles = [states_of(self.recorded, name, CHOICE_S_MAX) for name in self.setting.profiles]
        trainer = self.plan.workload.trainer.in_words()
        self.found = Exploration(self.name, trainer, "", self.recorded, profiles)
        self.setting.tell(
            f"{counted(len(self.recorded.operations), 'operation')}; {counted(self.found.planned, 'state')} to restore"
        )
        try:
            if all(each.together for each in profiles):
                raise ChaosError(profiles[0].together)
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
            restores = ForkedRestores(self.plan, base, cells, self.setting.stop, self.recorded, ranks)
            self.found.form = restores.words
        restores.do_all(self._one_by_one(begin))
        if self.wrong and restores is not whole and not self.setting.stop.asked:
            self.found.form = f"{whole.words}, as forked ranks cannot be used: {self.wrong}"
            self.setting.tell(self.found.form)
            self.wrong = self.blind = ""
            self.after.clear()
            self.found.tried.clear()
            restores = whole
            restores.do_all(self._one_by_one(begin))
        self.found.why = self.wrong or self.blind
        self.found.seconds = time.monotonic() - begin
        if restores is not whole and not self.setting.stop.asked:
            self._confirm()

    def _whole(self) -> Restarts:
        cells = self.folder / "cells"
        base, stop = self.folder / "base", self.setting.stop
        return Restarts(self.plan, base, cells, stop, self.recorded, self.setting.backend)

    def _one_by_one(self, begin: float) -> Next:
        todo = self._wanted()

        def next_one() -> Wanted | None:
            late = self.after and time.monotonic() - begin > self.setting.budget_s
            return None if late else next(todo, None)

        return next_one

    def _wanted(self) -> Iterator[Wanted]:
        names = set[frozenset[str]]()  # of which one restore goes on until the next save
        for save in reversed(self.recorded.saves):
            names.add(_saved(self.recorded, save.end).names)
            make = functools.partial(make_save, self.recorded, save.end)
            yield Wanted(f"save-{save.step}", make, functools.partial(self._hear_save, save.step), follow=True)
            if self.wrong:
                return
        yield Wanted("empty", lambda folder: None, self._hear_empty)
        if self.wrong:
            return
        after = {step: found.losses for step, found in self.after.items()}
        self.usual = Usual(self.recorded.losses, after, self.recorded.paths)
        self.found.tolerance = self.usual.tolerance
        yield Wanted("mixed", self._make_mixed, self._hear_mixed)
        self.found.controls = len(self.recorded.saves) + 2
        in_turn = itertools.zip_longest(*(profile.states for profile in self.found.profiles))
        mixed = [state for turn in in_turn for state in turn if state is not None]
        for state in mixed[: self.setting.states or None]:
            profile = self.found.profile(state.profile)
            make = functools.partial(make_state, self.recorded, profile, state)
            follow = state.names not in names
            names.add(state.names)
            yield Wanted(state.id, make, functools.partial(self._hear, state), follow)

    def _hear_save(self, step: int, found: Restart, end: End, seconds: float) -> None:
        last = step == self.recorded.saves[-1].step
        if found.step is not None and found.step > step:
            self.wrong = f"the job restored step {found.step} from the saves up to step {step}: {ELSEWHERE}"
        elif found.step == step and found.losses and not found.told and not end.failed and not end.late:
            self.after[step] = found
        elif last:
            did = end.failed or ("it restored nothing" if found.step is None else f"it restored step {found.step}")
            did = did if end.failed or found.losses or found.step is None else f"{did}, and told no loss"
            did = f"{did}, and finished no save in time" if end.late and found.step is not None else did
            self.wrong = f"the job did not restore the undamaged save of step {step}: {did}"

    def _hear_empty(self, found: Restart, end: End, seconds: float) -> None:
        if found.step:
            self.wrong = f"the job restored step {found.step} from an empty checkpoint folder: {ELSEWHERE}"

    def _make_mixed(self, folder: pathlib.Path) -> None:
        if not make_mixed(self.recorded, folder):
            self.blind = "the last two saves hold the same bytes: a restore of the wrong one would look right"

    def _hear_mixed(self, found: Restart, end: End, seconds: float) -> None:
        last = self.recorded.saves[-1].step
        if answer(found, end, last, self.usual).came is Came.RESUMED and not found.told:
            mixed = f"with weights of another save in that of step {last} the job goes on as with its own"
            self.blind = self.blind or f"{mixed}: a wrong restore would look right"
            self.setting.tell(self.blind)

    def _hear(self, state: State, found: Restart, end: End, seconds: float) -> None:
        given = answer(found, end, state.due, self.usual)
        self.found.tried.append(Tried(state, given, seconds, end.followed))
        if given.came in BAD:
            self.setting.tell(f"{state.id}: {given.came}: {given.detail} ({state.crash.why})")
        elif len(self.found.tried) % 100 == 0:
            self.setting.tell(f"{len(self.found.tried)} of {self.found.planned} states")

    def _confirm(self) -> None:
        for each in self.found.worst():
            self.setting.tell(f"{each.state.id}: {each.answer.came}; a whole restart of the job must confirm it")
            again = self._restarted(each)
            if again is None or again.came not in BAD:
                did = "nothing" if again is None else again.came
                self._doubt(each, f"{each.answer.came} with forked ranks, {did} in a whole restart of the job")

    def _restarted(self, doubted: Tried) -> Answer | None:
        heard, state = list[Answer](), doubted.state

        def hear(found: Restart, end: End, seconds: float) -> None:
            heard.append(answer(found, end, state.due, self.usual))

        make = functools.partial(make_state, self.recorded, self.found.profile(state.profile), state)
        wanted = iter([Wanted(state.id, make, hear, doubted.followed)])
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
