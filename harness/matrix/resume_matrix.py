"""The resume matrix: one run without faults, and a restart from each of its saves that matters, beside it.

    REPORTS/<name>/base           the run, and beside it `copies/<step>`: what it had saved when that save was finished
    REPORTS/<name>/resumed/<n>    the restarts, each until the next save and some steps more
    REPORTS/<name>/resume.json    what is known so far: a sweep that was stopped goes on from there

No fault is needed: whether a resume is right depends on the save that it takes, and not on how the job died.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from harness.backends.contract import Backend
from harness.errors import CannotRunError, ChaosError, FaultError
from harness.judge.facts.passes import pass_ends
from harness.judge.facts.samples import told_kind
from harness.log import untrusted_files
from harness.matrix import resume_comparison
from harness.matrix.checkpoint_matrix import own_folder
from harness.matrix.moments import Moment, Saves, moments
from harness.matrix.resume_comparison import CHANCE, Finding, Kind, Usual
from harness.plan.model import Abort, Plan, PlannedFault
from harness.report import write_files
from harness.run import drill
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.trainers.checkpoints.contract import Listing, list_checkpoints
from harness.trainers.checkpoints.shared.place import CheckpointFolder
from harness.units import counted

FOLLOWED_STEPS = 5  # so many steps after the next save are compared
LOOK_S = 0.03
NO_STEP_NS, WALL_CLOCK_NS = 120 * 10**9, 600 * 10**9
KNOWN = "resume.json"
BASE, COPIES, RESUMED = "base", "copies", "resumed"
NOTICE_S = "10s"
REPEAT = "repeat"  # of the run, where it is not known whether the job repeats itself bit for bit
NEVER_TRIED = (  # which a run without faults does not have
    ("the middle of a gradient accumulation", "no trainer tells when it saves there"),
    ("another number of ranks a node, or of workers of a loader", "no scenario says what may change"),
)


@dataclass(frozen=True)
class Tried:
    """One restart, in this folder. `found`: what was other than without the stop; `ended`: why it did not come back."""

    moment: Moment
    folder: str
    found: tuple[Finding, ...]
    steps: int  # that were compared
    seconds: float
    ended: str = ""

    @property
    def right(self) -> bool:
        return not self.found and not self.ended

    @property
    def words(self) -> list[str]:
        """What was other, in the order in which one follows from the other."""
        return [self.ended] if self.ended else [each.words for each in self.found]

    @property
    def short(self) -> str:
        return "it did not come back" if self.ended else ", ".join({each.kind: 0 for each in self.found}) or "the same"


@dataclass
class Sweep:
    """What is known. `not_tried`: the moment, and why."""

    name: str
    trainer: str
    digest: str
    steps: int = 0
    saves: list[int] = field(default_factory=list)  # the steps of all that the run made
    copied: list[int] = field(default_factory=list)
    ends: list[int] | None = None
    apart: float | None = None  # between the run and a repeat; `None`: there was no need for one
    tried: list[Tried] = field(default_factory=list)
    of_saves: list[Finding] = field(default_factory=list)  # what the saves of the run show by themselves
    not_had: dict[str, str] = field(default_factory=dict)  # moments that turned out not to be there, and why
    not_tried: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = False
    interrupted: bool = False

    @property
    def findings(self) -> list[str]:
        """The first one of each restart: the others follow from it."""
        wrong = [each for each in self.tried if not each.right]
        tried = [f"from {each.moment.words} (step {each.moment.step}): {each.words[0]}" for each in wrong]
        return [each.words for each in self.of_saves] + tried


def run_sweep(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    stop: StopRequest,
    tell: Callable[[str], None],
    budget_s: float,
) -> Sweep:
    """Goes on with a sweep of the same job that was stopped. Raises `ChaosError` where the job does not run without
    faults, and `CannotRunError` where the harness does not see what it saves."""
    if plan.backend not in drill.REACHED or plan.workload.checkpoint.store != "directory":
        raise CannotRunError(f"this needs checkpoints in the run's folder; use one of: {', '.join(drill.REACHED)}")
    with stop.attended():
        return _Sweep(plan, reports.resolve(), backend, stop, tell, budget_s).run()


def folder_of(plan: Plan) -> str:
    return f"resume-{plan.scenario.name}-{plan.outcome_digest()[:8]}"


class _NotHad(Exception):
    """The job has no such moment."""


class _Sweep:
    def __init__(
        self,
        plan: Plan,
        reports: pathlib.Path,
        backend: Backend,
        stop: StopRequest,
        tell: Callable[[str], None],
        budget_s: float,
    ):
        self.plan, self.backend, self.stop, self.tell = plan, backend, stop, tell
        self.until_s = time.monotonic() + budget_s
        self.budget_s = budget_s
        self.folder = reports / folder_of(plan)
        self.base = self.folder / BASE
        self.longest_s = 0.0

    def run(self) -> Sweep:
        self.sweep = _stored(self.folder / KNOWN, self.plan) or self._begin()
        if self.stop.asked:
            self.sweep.interrupted = True
            return self.sweep
        base = timeline.load(self.base)
        self.usual = Usual(base, self.sweep.ends or [], self.sweep.apart or 0.0)
        self.saves = Saves(self.sweep.saves, self.sweep.copied)
        todo = [*moments(self.saves, self.sweep.ends, base.reached_step), self._on_fewer_nodes()]
        self.tell(f"{counted(len(self._left(todo)), 'restart')}, about {self.longest_s:.0f} s each")
        for moment in self._left(todo):
            if self.stop.asked or time.monotonic() + self.longest_s > self.until_s:
                break
            try:
                tried = self._try(moment)
            except _NotHad as why:
                self.sweep.not_had[moment.words] = str(why)
                continue
            except drill.CannotDrill as why:
                raise ChaosError(str(why)) from why
            if self.stop.asked:  # it was cut short: nothing follows from it
                break
            self.sweep.tried.append(tried)
            self.longest_s = max(each.seconds for each in self.sweep.tried)
            self.tell(f"{tried.moment.words} (step {tried.moment.step}): {tried.short}")
            self._store()
        return self._end(todo)

    def _begin(self) -> Sweep:
        if self.folder.exists():  # of a sweep that is complete, or of another version
            untrusted_files.remove_tree(self.folder.parent, self.folder.name)
        own_folder(self.folder)
        own_folder(self.folder / RESUMED)
        self.tell("a run without faults, with a copy of each of its saves")
        begin_s = time.monotonic()
        copier = _Copier(self.plan, self.base, self.folder / COPIES)
        with copier.at_work():
            outcome = execute(self._plan(BASE), self.base, self.backend, stop=self.stop)
        sweep = Sweep(self.folder.name, self.plan.workload.trainer.in_words(), self.plan.outcome_digest())
        if self.stop.asked:
            return sweep
        if outcome.outcome != "completed":
            raise ChaosError(f"the run without faults {outcome.outcome}: {outcome.reason}")
        base = timeline.load(self.base)
        sweep.steps, sweep.ends, sweep.copied = base.reached_step, pass_ends(base, told_kind(base, None)), copier.steps
        sweep.saves = sorted({*copier.steps, *resume_comparison.published(base)})
        sweep.of_saves = resume_comparison.same_tensors(base)
        self.longest_s = time.monotonic() - begin_s
        copied = f"{len(sweep.copied)} of {counted(len(sweep.saves), 'save')} copied"
        self.tell(f"it took {self.longest_s:.0f} s; {copied}")
        write_files({KNOWN: _text(sweep)}, self.folder)
        return sweep

    def _left(self, todo: list[Moment]) -> list[Moment]:
        done = {*(each.moment.words for each in self.sweep.tried), *self.sweep.not_had}
        return [each for each in todo if each.step is not None and each.words not in done]

    def _on_fewer_nodes(self) -> Moment:
        asked, words = self.plan.workload, "the first save, on one node less"
        if asked.min_nodes == asked.nodes:
            return Moment(words, None, why="the scenario allows no other number of nodes: see `min_nodes`")
        return Moment(words, next(iter(self.sweep.copied), None), nodes=asked.nodes - 1, why="there is none")

    def _try(self, moment: Moment) -> Tried:
        begin_s = time.monotonic()
        moment, place, outcome = self._restart(moment)
        again = timeline.load(place)
        found = self._found(moment, again)
        if found and not moment.nodes and all(each.kind in CHANCE for each in found) and self.sweep.apart is None:
            self._repeat()
            found = self._found(moment, again)
        steps = len(np.intersect1d(again.steps.step, self.usual.run.steps.step))
        last, reached = self.usual.run.reached_step, max(again.reached_step, moment.step or 0)
        ended = ""
        if outcome.outcome in ("failed", "aborted") or (not steps and reached < last):
            ended = f"it {outcome.outcome}: {outcome.reason}"
        elif outcome.outcome == "completed" and reached < last:
            ended = f"it ended after step {reached}, and the run after step {last}"
        elif outcome.outcome == "broken":
            raise ChaosError(outcome.reason)
        return Tried(moment, place.name, tuple(found), steps, time.monotonic() - begin_s, ended)

    def _found(self, moment: Moment, again: timeline.Timeline) -> list[Finding]:
        assert moment.step is not None
        if moment.nodes:
            return resume_comparison.on_other_ranks(self.usual, again, moment.step)
        return resume_comparison.differences(self.usual, again, moment.step)

    def _restart(self, moment: Moment) -> tuple[Moment, pathlib.Path, Outcome]:
        """On a copy; with the step of the newest save in it. What it saves stays, for the next resume in a row."""
        source = self._source(moment)
        newest = next(iter(_listed(self.plan, source).finished), None)
        step = moment.step if newest is None or newest.step is None else newest.step
        assert step is not None
        name = f"{step}" + f"-{moment.resume}" * (moment.resume > 1) + f"-on-{moment.nodes}" * bool(moment.nodes)
        plan, following = self._plan(f"{RESUMED}-{name}", moment.nodes), self.saves.after(step) or step
        place = self._place(name, source)
        watch = drill.Watch(self.stop, lambda watch: not moment.nodes and self._is_enough(watch, place, following))
        return replace(moment, step=step), place, execute(plan, place, self.backend, watch, watch.end)

    def _place(self, name: str, source: pathlib.Path) -> pathlib.Path:
        """A folder for one restart, with a copy of what is saved there."""
        place = self.folder / RESUMED / name
        if place.exists():
            untrusted_files.remove_tree(place.parent, place.name)
        place.mkdir(parents=True)
        drill.copy_saved(self.plan.launch(), source, place)
        return place

    def _source(self, moment: Moment) -> pathlib.Path:
        if moment.resume > 1:
            return self.folder / RESUMED / self._before(moment)
        copy = self.folder / COPIES / str(moment.step)
        return self._after_a_notice(moment.step or 0, copy) if moment.notice else copy

    def _after_a_notice(self, step: int, copy: pathlib.Path) -> pathlib.Path:
        """What the job saved when a node got one, half-way to its next save. Raises `_NotHad`."""
        following = self.saves.after(step) or self.usual.run.reached_step
        fault = {"id": "notice", "fault": "preemption", "parameters": {"notice": NOTICE_S}}
        when, node = {"step": step + max(1, (following - step) // 2)}, self.plan.workload.nodes - 1
        planned = PlannedFault.model_validate(fault | {"when": when, "targets": [{"node_index": node}]})
        place = self._place("notice", copy)
        plan = self._plan(f"{RESUMED}-notice").model_copy(update={"faults": (planned,)})

        def newest() -> int:
            return max((each.step or 0 for each in _listed(self.plan, place).finished), default=0)

        watch = drill.Watch(self.stop, lambda watch: newest() > step or watch.progress.complete_step > following)
        try:
            execute(plan, place, self.backend, watch, watch.end)
        except CannotRunError as error:
            raise _NotHad(str(error)) from error
        if newest() in (0, step, *self.saves.made):
            raise _NotHad("the notice led to no save of its own")
        return place

    def _before(self, moment: Moment) -> str:
        """The folder of the resume before this one in the row, which begins with the first save."""
        first = self.saves.copied[0]
        before = [
            each for each in self.sweep.tried if each.moment.resume == moment.resume - 1 and not each.moment.nodes
        ]
        return next(each.folder for each in before if each.moment.resume > 1 or each.moment.step == first)

    def _is_enough(self, watch: drill.Watch, place: pathlib.Path, following: int) -> bool:
        """The next save is finished, and some steps came after it."""
        if watch.progress.complete_step < following + FOLLOWED_STEPS:
            return False
        if watch.progress.committed_step >= following:
            return True
        found = _listed(self.plan, place).finished
        return bool(found) and (found[0].step or 0) >= following

    def _repeat(self) -> None:
        """Whether the job does the same twice decides what a difference means."""
        self.tell("something differs: a repeat of the run shows whether the job repeats itself bit for bit")
        place = self.folder / REPEAT
        if place.exists():
            untrusted_files.remove_tree(place.parent, place.name)
        place.mkdir()
        outcome = execute(self._plan(REPEAT), place, self.backend, stop=self.stop)
        if outcome.outcome != "completed" and not self.stop.asked:
            raise ChaosError(f"a repeat of the run without faults {outcome.outcome}: {outcome.reason}")
        self.sweep.apart = resume_comparison.apart(self.usual.run, timeline.load(place))
        self.usual = Usual(self.usual.run, self.usual.ends, self.sweep.apart)

    def _plan(self, name: str, nodes: int | None = None) -> Plan:
        plan = self.plan.without_faults(f"{self.folder.name}-{name}", nodes)
        limits = Abort(if_no_step_for_ns=NO_STEP_NS, if_not_started_for_ns=NO_STEP_NS, wall_clock_ns=WALL_CLOCK_NS)
        return plan if name in (BASE, REPEAT) else plan.model_copy(update={"abort": limits})

    def _end(self, todo: list[Moment]) -> Sweep:
        sweep = self.sweep
        left = self._left(todo)
        why = "it was stopped" if self.stop.asked else f"the budget of {self.budget_s / 60:.3g} min was used"
        sweep.not_tried = [(each.words, f"{why}; the same command goes on") for each in left]
        sweep.not_tried += [(each.words, each.why) for each in todo if each.step is None]
        sweep.not_tried += sweep.not_had.items()
        sweep.not_tried += NEVER_TRIED
        sweep.complete, sweep.interrupted = not left, self.stop.asked
        self._store()
        if sweep.complete:
            self._remove_copies()
        return sweep

    def _remove_copies(self) -> None:
        names = drill.saved_folders(self.plan.launch())
        for place in (self.base, self.folder / REPEAT, *(self.folder / RESUMED).iterdir()):
            for name in names if place.is_dir() else ():
                with contextlib.suppress(FaultError):
                    untrusted_files.remove_tree(place, name)
        with contextlib.suppress(FaultError):
            untrusted_files.remove_tree(self.folder, COPIES)

    def _store(self) -> None:
        write_files({KNOWN: _text(self.sweep)}, self.folder)


def _text(sweep: Sweep) -> str:
    return json.dumps({"schema": 1, **asdict(sweep)}, indent=1) + "\n"


def _stored(path: pathlib.Path, plan: Plan) -> Sweep | None:
    """A sweep of this job that is not complete."""
    try:
        known = json.loads(path.read_text())
        known.pop("schema")
        for each in known["tried"]:
            each["moment"] = Moment(**each["moment"])
            each["found"] = tuple(Finding(Kind(kind), words) for kind, words in map(dict.values, each["found"]))
        known["tried"] = [Tried(**each) for each in known["tried"]]
        known["of_saves"] = [Finding(Kind(each["kind"]), each["words"]) for each in known["of_saves"]]
        known["not_tried"] = [(words, why) for words, why in known["not_tried"]]
        sweep = Sweep(**known)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
    return sweep if not sweep.complete and sweep.digest == plan.outcome_digest() else None


def _listed(plan: Plan, run_dir: pathlib.Path) -> Listing:
    saved = plan.workload.checkpoint
    return list_checkpoints(CheckpointFolder.look(run_dir, saved.folder), saved.layout)


class _Copier:
    """Copies what a job has saved, each time that a further save is finished."""

    def __init__(self, plan: Plan, run_dir: pathlib.Path, copies: pathlib.Path):
        self._plan, self._run_dir, self._copies = plan, run_dir, copies
        self._over = threading.Event()
        self._before: Listing | None = None
        self._full = ""

    @property
    def steps(self) -> list[int]:
        """Of the saves that were copied, ascending."""
        return sorted(int(each.name) for each in self._copies.iterdir())

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        self._copies.mkdir(parents=True)
        thread = threading.Thread(target=self._watch, name="copier", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(drill.COPY_S_MAX)
        if self._full:
            raise ChaosError(f"the saves cannot be copied: {self._full}")

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()
        self._look()
        self._look()  # the last save lies still now

    def _look(self) -> None:
        """What is finished, the same in two looks, and named by the pointer if there is one, is copied."""
        try:
            found = _listed(self._plan, self._run_dir)
            settled, self._before = found == self._before, found
            newest = found.finished[0] if found.finished else None
            if newest is None or newest.step is None or not settled:
                return
            pointed = found.pointer is None or found.pointer.target == newest.path
            if pointed and not (self._copies / str(newest.step)).exists():
                self._copy(newest.step)
        except (OSError, FaultError, ValueError):
            return  # something went away meanwhile: the next look sees more

    def _copy(self, step: int) -> None:
        place = self._copies.with_name(f"{COPIES}.new")
        if place.exists():
            untrusted_files.remove_tree(place.parent, place.name)
        place.mkdir()
        try:
            drill.copy_saved(self._plan.launch(), self._run_dir, place)
        except drill.CannotDrill as why:
            self._full = str(why) if "room" in str(why) else ""
            return
        newest = next(iter(_listed(self._plan, place).finished), None)
        if newest is not None and newest.step == step:
            place.rename(self._copies / str(step))
