"""Runs a job once without faults, then restarts the job from selected saves of that run.

The run without faults is in `REPORTS/<name>/base`. Each folder `REPORTS/<name>/copies/<step>` holds copies of the run's
saves, made while the save of step `<step>` was the newest. Each restart is in a folder of `REPORTS/<name>/resumed`. The
harness ends most restarts some steps after the first save that the restart makes. The file `REPORTS/<name>/resume.json`
holds the results so far, so that a stopped command can continue. No fault is injected, because bugs in resuming depend
on the restored save, not on how the job ended."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.backends.contract import Backend
from harness.campaign.restarts import own_folder
from harness.errors import CannotRunError, ChaosError, FaultError, UsageError
from harness.evidence.samples import pass_ends, told_kind
from harness.log import untrusted_files
from harness.log.journal import JOURNAL, Journal, is_closed, is_running
from harness.matrix import resume_comparison, trainer_code
from harness.matrix.forgotten_files import forgotten
from harness.matrix.moments import AMID, Moment, Saves, moments
from harness.matrix.other_tensors import other_tensors
from harness.matrix.restart_judged import began_again, judge_restart, judge_sweep, not_as_asked, not_repeated, usual_of
from harness.matrix.save_copies import Copies, look, newest
from harness.matrix.sweep import (
    BASE,
    COPIES,
    KNOWN,
    NONE_FORGOTTEN,
    REPEATS,
    RESUMED,
    Forgotten,
    Sweep,
    Tried,
    store,
    stored,
)
from harness.matrix.told_saves import told_saves
from harness.plan.run_plan import Abort, Plan, PlannedFault
from harness.report import write_files
from harness.run import drill
from harness.run.job import Outcome, execute
from harness.run.observers import Heard
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.timeline.save_events import COMMITTED
from harness.units import counted

FOLLOWED_STEPS = 5  # steps after the next save that are compared
SETTLED_S = 1.0  # seconds for which the store must lie still after a notice
LEAST_S, START_TIMES, STEP_TIMES = 60.0, 3, 5  # limit of a restart: seconds, and factors of the run's times
TAKEN_S = 5.0  # seconds for which the store must lie still if the node does not come back
NOTICE_S = "10s"
RESULTS = (KNOWN, "report.md", "report.html")
REASON_CHARS_MAX = 300


@dataclass(frozen=True)
class Setting:
    reports: pathlib.Path
    backend: Backend
    stop: StopRequest
    tell: Callable[[str], None]
    budget_s: float
    files: bool = False  # a file that a restart did not write is a finding
    ranks_per_node: int | None = None  # number of ranks a node on which the first save is also tried
    also_with: Sequence[tuple[str, ...]] = ()  # words after the trainer's command, for the first save
    known: bool = False  # a complete sweep of the same job and code is judged again instead of made


class _NotHad(Exception):
    """Raised if the job cannot make a planned restart, or if the restart yields no values to compare."""


class _Lost(Exception):
    """Raised if a restart cannot be tried although the job made the save, so that the verdict cannot be pass."""


class _Stopped(Exception):
    pass


def run_sweep(plan: Plan, setting: Setting) -> Sweep:
    """Restarts a job from several saves (a sweep), or continues a stopped sweep of the same job and code.

    Raises `ChaosError` if the job fails in the run without faults. Raises `CannotRunError` if the harness cannot see
    the job's saves, or reads the trainer's own logs, which would mix lines of the restart and of the earlier run."""
    if plan.backend not in drill.REACHED or plan.workload.checkpoint.store != "directory":
        raise CannotRunError(f"this needs checkpoints in the run's folder; use one of: {', '.join(drill.REACHED)}")
    if plan.workload.trainer.reader() is not None:
        why = "a restart would find its old logs and tell them again"
        raise CannotRunError(f"this needs a trainer that is observed or tells its events; with `read:` {why}")
    folder = setting.reports.resolve() / f"resume-{plan.scenario.name}-{plan.outcome_digest()[:8]}"
    with setting.stop.attended(), _locked(folder):
        try:
            return _Sweep(plan, folder, setting).run()
        except drill.CannotDrill as why:
            raise ChaosError(str(why)) from why


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    if folder.exists() and not (folder / JOURNAL).is_file():
        raise UsageError(f"{folder} is there, and no sweep made it; move it away")
    if not folder.exists():
        own_folder(folder)
    runs = [*(folder / name for name in (BASE, *REPEATS)), *(folder / RESUMED).glob("*")]
    if any(is_running(each) for each in (folder, *runs) if (each / JOURNAL).exists()):
        raise UsageError(f"{folder}: another sweep of this job is at work; wait for it, or use other --reports")
    if not all(is_closed(each) for each in runs if (each / JOURNAL).exists()):
        raise UsageError(f"{folder}: a run in it was killed and not undone; call chaos heal first")
    journal = Journal(folder)
    try:
        yield
    finally:
        journal.release()


def _saving_option(plan: Plan) -> str:
    every = plan.workload.checkpoint
    other = every.model_copy(update={"every_steps": every.every_steps + 1, "every": None})
    changed = plan.model_copy(update={"workload": plan.workload.model_copy(update={"checkpoint": other})})
    heard = changed.launch() != plan.launch()
    return "--save-every" if heard else ""


class _Sweep:
    def __init__(self, plan: Plan, folder: pathlib.Path, setting: Setting):
        self.plan, self.folder, self.setting = plan, folder, setting
        self.backend, self.stop, self.tell = setting.backend, setting.stop, setting.tell
        self.until_s = time.monotonic() + setting.budget_s
        self.base = folder / BASE
        self.longest_s = self.whole_s = 0.0  # limits of a restart: until enough is known, and to the end of the job
        self.todo: list[Moment] = []
        self.no_repeat = ""  # reason for which a repeat of the run cannot be made

    def run(self) -> Sweep:
        code = trainer_code.code_of(self.plan, self.backend)
        known = stored(self.folder)
        same = known is not None and (known.digest, known.code) == (self.plan.outcome_digest(), code)
        try:
            if known is not None and same and (self.setting.known or not known.complete):
                if not known.complete:
                    os.utime(self.folder / "plan.json")  # `last` now means this sweep
                if not trainer_code.is_known(self.plan, code):
                    self.tell(trainer_code.CODE_UNKNOWN)
                self.sweep = judge_sweep(replace(known, files=self.setting.files), self.folder)
            else:
                if known is not None:
                    self.tell(
                        f"{'the sweep is complete' if same else 'the job or its code has changed'}: all is done anew"
                    )
                self.sweep = self._begin(code)
            self._load()
            while any(each.waits for each in self.sweep.tried) and self._repeat():
                self.sweep = judge_sweep(self.sweep, self.folder)
            self._try_all()
        except _Stopped:
            self.sweep.interrupted = True
        except ChaosError:
            if not self.sweep.steps:  # there is no sweep to go on with
                self._remove_copies()
            raise
        else:
            self.sweep.interrupted = False
        return self._end()

    def _load(self) -> None:
        self.usual = usual_of(self.folder, self.sweep)
        run = self.usual.run
        told = self.usual.saves, self.sweep.unnamed, _saving_option(self.plan)
        self.saves = Saves(self.sweep.saves, self.sweep.copied, *told)
        self.todo = [*moments(self.saves, self.sweep.ends, run.reached_step), *self._variants_of_first_save()]
        first_ns, begun_ns = int(run.progress.end[0]) if len(run.progress) else run.end, run.begin
        start_s, ran_s = (first_ns - begun_ns) / 1e9, (run.end - first_ns) / 1e9
        self.whole_s = (run.end - begun_ns) / 1e9
        self.longest_s = self.longest_s or self.whole_s
        waits = {
            name: int((LEAST_S + START_TIMES * start_s) * 1e9)
            for name in ("if_no_step_for_ns", "if_not_started_for_ns")
        }
        waits["if_no_step_for_ns"] += int(1e9 * ran_s)
        wall_ns = waits["if_not_started_for_ns"] + int(STEP_TIMES * ran_s * 1e9)
        self.limits = Abort(**waits, wall_clock_ns=wall_ns)

    def _begin(self, code: dict[str, str]) -> Sweep:
        self.sweep = Sweep(self.folder.name, self.plan.workload.trainer.in_words(), self.plan.outcome_digest(), code)
        self.sweep.files = self.setting.files
        for name in (BASE, *REPEATS, RESUMED, COPIES):
            if (self.folder / name).exists():
                untrusted_files.remove_tree(self.folder, name)
        for name in RESULTS:
            (self.folder / name).unlink(missing_ok=True)
        own_folder(self.folder / RESUMED)
        write_files({"plan.json": json.dumps(self.plan.to_json(), indent=2) + "\n"}, self.folder)
        self.tell("a run without faults, with a copy of each of its saves")
        begin_s = time.monotonic()
        copies = Copies(self.plan, self.base, self.folder / COPIES)
        with copies.at_work():
            outcome = self._execute(self._plan(BASE), self.base)
        if outcome.outcome != "completed":
            raise ChaosError(f"the run without faults {outcome.outcome}: {outcome.reason}")
        base, sweep = timeline.load(self.base), self.sweep
        sweep.steps, sweep.ends, sweep.copied = base.reached_step, pass_ends(base, told_kind(base, None)), copies.steps
        sweep.saves = sorted({*copies.steps, *resume_comparison.published(base)})
        sweep.told = sum(each["event"] == COMMITTED for each in base.checkpoints)
        sweep.unnamed = {step: name for step, name in copies.unnamed.items() if step not in copies.steps}
        sweep.of_saves = resume_comparison.same_tensors(base)
        self.longest_s = time.monotonic() - begin_s
        copied = f"{len(sweep.copied)} of {sweep.known_saves} copied"
        self.tell(f"it took {self.longest_s:.0f} s; {copied}")
        store(sweep, self.folder)
        return sweep

    def _variants_of_first_save(self) -> Iterator[Moment]:
        """Yields restarts from the first save with changed options, such as another number of ranks. A restart on
        another number of ranks begins only between two steps, because the ranks would divide a step in another way."""
        asked, rare, setting = self.plan.workload, "the job made no such save", self.setting
        whole = next((each for each in self.saves.made if not self.saves.told.within(each)), None)
        begin = "the first save" if whole == self.saves.first else "the first save between two steps"
        if asked.min_nodes == asked.nodes:
            fixed = "the scenario allows no other number of nodes: see min_nodes"
            yield Moment("the first save, on one node less", None, why=fixed)
        else:
            yield replace(self.saves.moment(whole, f"{begin}, on one node less", rare), nodes=asked.nodes - 1)
        ranks = setting.ranks_per_node
        if ranks is None:
            yield Moment("another number of ranks a node", None, why="name one, with --ranks-per-node")
        else:
            words = f"{begin}, on {counted(ranks, 'rank')} a node"
            yield replace(self.saves.moment(whole, words, rare), ranks=ranks)
        for also in setting.also_with:
            words = f"the first save, with {shlex.join(also)}"
            yield replace(self.saves.moment(self.saves.first, words, rare), also=also)
        if not setting.also_with:
            yield Moment("another number of workers of a loader", None, why="name it, with --also-with")

    @property
    def _left(self) -> list[Moment]:
        done = {*(each.moment.words for each in self.sweep.tried), *self.sweep.not_had, *self.sweep.lost}
        return [each for each in self.todo if each.save is not None and each.words not in done]

    def _try_all(self) -> None:
        self.tell(f"{counted(len(self._left), 'restart')}, about {self.longest_s:.0f} s each")
        for number, moment in enumerate(left := self._left, 1):
            if self.stop.asked:
                raise _Stopped
            if time.monotonic() + self.longest_s > self.until_s:
                break
            longer = ", which may wait long for that save" if moment.notice else ""
            self.tell(f"{number} of {len(left)}: from {moment.words}{longer}")
            try:
                tried = self._try(moment)
            except _NotHad as why:
                self.sweep.not_had[moment.words] = str(why)
                self.tell(f"    not tried: {why}")
                continue
            except _Lost as why:
                self.sweep.lost[moment.words] = str(why)
                self.tell(f"    not tried: {why}")
                continue
            self.sweep.tried.append(tried)
            self.longest_s = max((each.seconds for each in self.sweep.tried if not each.to_end), default=self.longest_s)
            self.tell(f"    ({tried.moment.where}): {tried.short}")
            store(self.sweep, self.folder)

    # One restart

    def _try(self, moment: Moment) -> Tried:
        begin_s = time.monotonic()
        source = self._source(moment)
        save = newest(look(self.plan, source)[1])
        if save is None or save < (moment.save or 0):
            raise _Lost(f"{source.name} holds no finished save of step {moment.step} or later")
        told = self.saves.told
        if source.parent.name != COPIES:
            told = told.then(told_saves(timeline.load(source)))
        if not told.knows(save):
            raise _Lost(f"save {save}: the log does not tell how many steps it holds")
        moment = replace(self.saves, told=told).placed(replace(moment, save=save))
        also = moment.also and hashlib.sha256(shlex.join(moment.also).encode()).hexdigest()[:8]
        parts = {"": moment.resume if moment.resume > 1 else None, "on-": moment.nodes, "ranks-": moment.ranks}
        name = "-".join([str(save), *(f"{word}{part}" for word, part in {**parts, "also-": also}.items() if part)])
        place, outcome = self._restart(name, source, moment)
        beside = self._forgotten(moment, source, place, outcome)
        tried = self._judged(moment, place, begin_s, beside)
        while tried.waits and self._repeat():
            tried = self._judged(moment, place, begin_s, beside)
        if moment.elsewhere and tried.right and not tried.unsure and not any(tried.compared.values()):
            raise _NotHad("no samples can be compared there")
        return tried

    def _restart(self, name: str, source: pathlib.Path, moment: Moment) -> tuple[pathlib.Path, Outcome]:
        follow = self._follows(moment)
        for last in (False, True):
            place = self._place(name, source)
            enough = functools.partial(self._is_enough, place=place, moment=moment, follow=follow)
            watch = drill.Watch(self.stop, enough)
            outcome = self._execute(self._plan(f"{RESUMED}-{name}", moment), place, watch)
            if outcome.outcome in ("broken", "capped"):
                raise ChaosError(outcome.reason)
            made = timeline.load(place)
            odd = not_as_asked(self.usual.run, made, moment) or began_again(made)
            if last or not odd:
                break
            self.tell(f"{odd}: the restart is made again")
        return place, outcome

    def _follows(self, moment: Moment) -> bool:
        """Returns True if the restart is to run to the end of the job. If time allows, one restart from each kind of
        save runs to the end of the job."""
        if moment.elsewhere or any(each.moment.kind == moment.kind and each.to_end for each in self.sweep.tried):
            return False
        row = (each for each in self.todo if each.save is not None and each.resume == moment.resume + 1)
        leads = not (moment.also or moment.notice) and (moment.resume > 1 or moment.save == self.saves.first)
        if leads and any(row):
            return False
        others_s = (len(self._left) - 1) * self.longest_s
        return time.monotonic() + others_s + self.whole_s <= self.until_s

    def _judged(self, moment: Moment, place: pathlib.Path, begin_s: float, beside: Forgotten) -> Tried:
        seconds = time.monotonic() - begin_s
        tensors = self._other_tensors(moment, place)
        return judge_restart(self.usual, moment, place, seconds, beside, self.setting.files, tensors)

    def _other_tensors(self, moment: Moment, place: pathlib.Path) -> Sequence[str]:
        again = timeline.load(place)
        save = resume_comparison.first_other_save(self.usual, again, moment.save or 0)
        if moment.elsewhere or save is None:
            return ()
        theirs = resume_comparison.published(self.usual.run)[save].get("tensor_digests") or ()
        return other_tensors(self.plan, place, save, set(map(str, theirs)))

    def _forgotten(self, moment: Moment, source: pathlib.Path, place: pathlib.Path, outcome: Outcome) -> Forgotten:
        after = self.saves.after(moment.save)
        was, following = (self.folder / COPIES / str(save) for save in (moment.save, after))
        ended = outcome.outcome == "completed"
        run = self.base if ended else following
        if moment.elsewhere or not was.is_dir():
            return NONE_FORGOTTEN
        if not run.is_dir():
            return Forgotten(unseen="the run's next save was not copied")
        try:
            ids = [self._plan(name).run_id for name in (BASE, f"{RESUMED}-{place.name}")]
            until_ns = math.inf if ended else self._followed_until_ns(following, after or 0)
            return forgotten(self.plan, (was, run), (source, place), ids, until_ns)
        except (OSError, FaultError) as error:
            return Forgotten(unseen=str(error)[:REASON_CHARS_MAX])

    def _followed_until_ns(self, copy: pathlib.Path, save: int) -> int:
        """Returns the file time in ns at which the uninterrupted run was some steps after a save. A restart may lack
        files that the uninterrupted run wrote after the returned time."""
        place, listing = look(self.plan, copy)
        saved_ns = max((place.changed_ns(path) for each in listing.finished[:1] for path in each.files), default=0)
        progress, step = self.usual.run.progress, self.saves.told.at(save)
        ends = progress.end[(progress.step >= step) & (progress.step < step + FOLLOWED_STEPS)]
        return saved_ns + (int(ends[-1] - ends[0]) if len(ends) else 0)

    def _is_enough(self, watch: drill.Watch, place: pathlib.Path, moment: Moment, follow: bool) -> bool:
        if follow:
            return False
        step, save = moment.step, moment.save or 0
        following = self.saves.after(save) or save
        until = max(self.saves.told.at(following), step)
        if moment.elsewhere:
            end = next((each for each in self.sweep.ends or () if each > step), until)
            ranks = self._plan(RESUMED, moment).workload.world_size
            until = step + -(-(end - step) * self.plan.workload.world_size // ranks)
            return watch.progress.complete_step >= until + FOLLOWED_STEPS
        if watch.progress.complete_step < until + FOLLOWED_STEPS:
            return False
        return (newest(look(self.plan, place)[1]) or 0) >= following

    def _place(self, name: str, source: pathlib.Path) -> pathlib.Path:
        place = self.folder / RESUMED / name
        if place.exists():
            untrusted_files.remove_tree(place.parent, place.name)
        place.mkdir()
        drill.copy_saved(self.plan.launch(), source, place)
        drill.copy_ledgers(self.base if source.parent.name == COPIES else source, place)
        return place

    def _source(self, moment: Moment) -> pathlib.Path:
        if moment.resume > 1:
            before = self.sweep.before_in_row(moment)
            if before is None:
                raise _Lost("the resume before it in the row was not tried")
            if newest(look(self.plan, place := self.folder / RESUMED / before.folder)[1]) == before.moment.save:
                raise _Lost("the resumed job before it made no save")
            return place
        copy = self.folder / COPIES / str(moment.save)
        if not copy.is_dir():
            raise _Lost("the copy of this save is gone")
        return self._after_a_notice(moment, copy) if moment.notice else copy

    def _after_a_notice(self, moment: Moment, copy: pathlib.Path) -> pathlib.Path:
        step, save, after = moment.step, moment.save or 0, self.saves.after(moment.save)
        following = self.usual.run.reached_step if after is None else self.saves.told.at(after)
        fault = {"id": "notice", "fault": "preemption", "parameters": {"notice": NOTICE_S}}
        when, node = {"step": step + max(1, (following - step) // 2)}, self.plan.workload.nodes - 1
        planned = PlannedFault.model_validate(fault | {"when": when, "targets": [{"node_index": node}]})
        place = self._place("notice", copy)
        plan = self._plan(f"{RESUMED}-notice").model_copy(update={"faults": (planned,)})
        still, fixed = _Still(), self.plan.workload.min_nodes == self.plan.workload.nodes

        def enough(watch: drill.Watch) -> bool:
            still_s = still.since_s(look(self.plan, place))
            saved = (newest(look(self.plan, place)[1]) or 0) > save
            over = fixed and notice.taken and still_s > TAKEN_S  # the node does not come back
            return watch.progress.complete_step > following or (saved and still_s > SETTLED_S) or over

        notice = _Notice(self.stop, enough)
        try:
            self._execute(plan, place, notice)
        except CannotRunError as error:
            raise _NotHad(str(error)) from error
        if newest(look(self.plan, place)[1]) in (None, *self.saves.made):
            raise _NotHad("the notice led to no save of its own")
        return place

    def _repeat(self) -> bool:
        made = self.usual.repeats
        if self.no_repeat or not self.usual.too_few or (made and time.monotonic() + self.whole_s > self.until_s):
            return False
        name = REPEATS[made]
        self.tell(f"something differs: repeat {made + 1} of the run shows whether it may be chance")
        for _ in range(2):
            if (place := self.folder / name).exists():
                untrusted_files.remove_tree(self.folder, name)
            place.mkdir()
            outcome = self._execute(self._plan(name), place)
            if outcome.outcome != "completed":
                raise ChaosError(f"a repeat of the run without faults {outcome.outcome}: {outcome.reason}")
            self.no_repeat = not_repeated(self.usual.run, timeline.load(place))
            if not self.no_repeat:
                self.usual = usual_of(self.folder, self.sweep)
                return True
            self.tell(f"the repeat is no repeat: {self.no_repeat}")
        return False

    def _plan(self, name: str, moment: Moment | None = None) -> Plan:
        plan = self.plan.without_faults(f"{self.folder.name}-{name}", moment.nodes if moment else None)
        if moment and (moment.ranks or moment.also):
            asked = plan.workload.trainer.also_with(plan.workload, moment.also)
            workload = asked.model_copy(update={"ranks_per_node": moment.ranks or asked.ranks_per_node})
            plan = plan.model_copy(update={"workload": workload})
        return plan if name in (BASE, *REPEATS) else plan.model_copy(update={"abort": self.limits})

    def _execute(self, plan: Plan, place: pathlib.Path, watch: drill.Watch | None = None) -> Outcome:
        watch = watch or drill.Watch(self.stop, lambda _: False)
        outcome = execute(plan, place, self.backend, watch, watch.end)
        if self.stop.asked:
            raise _Stopped
        return outcome

    # The end

    def _end(self) -> Sweep:
        sweep, left = self.sweep, self._left
        if sweep.steps:
            minutes = f"{self.setting.budget_s / 60:.3g} min"
            why = "it was stopped" if sweep.interrupted else f"the budget of {minutes} was used"
            sweep.not_tried = [(each.words, f"{why}; the same command goes on") for each in left]
            shown = {AMID} if any(each.moment.micro_batches for each in sweep.tried) else set()
            absent = [each for each in self.todo if each.save is None and (each.missed or each.words not in shown)]
            sweep.not_tried += [(each.words, each.why) for each in sorted(absent, key=lambda each: not each.missed)]
            sweep.not_tried = [*sweep.lost.items(), *sweep.not_tried, *sweep.not_had.items()]
            sweep.missed = len(sweep.lost) + sum(each.missed for each in absent)
            waits = any(each.waits for each in sweep.tried) and not self.no_repeat
            sweep.complete = not left and not sweep.interrupted and not waits
            store(sweep, self.folder)
        if sweep.complete or not sweep.steps:
            self._remove_copies()
        return sweep

    def _remove_copies(self) -> None:
        names = drill.saved_folders(self.plan.launch())
        for place in (self.base, *(self.folder / each for each in REPEATS), *(self.folder / RESUMED).glob("*")):
            for name in names if place.is_dir() else ():
                with contextlib.suppress(FaultError):
                    untrusted_files.remove_tree(place, name)
        with contextlib.suppress(FaultError):
            untrusted_files.remove_tree(self.folder, COPIES)


@dataclass
class _Notice(drill.Watch):
    taken: bool = False

    def new_events(self, events: Heard) -> None:
        self.taken |= any(event["event"] == "fault.taking" for _, event in events)
        super().new_events(events)


class _Still:
    def __init__(self) -> None:
        self._seen: object = None
        self._at_s = time.monotonic()

    def since_s(self, seen: object) -> float:
        if seen != self._seen:
            self._seen, self._at_s = seen, time.monotonic()
        return time.monotonic() - self._at_s
