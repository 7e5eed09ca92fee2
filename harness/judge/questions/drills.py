"""After the run, what the job saved brings it back: its command starts once more, on a copy of that.

The *restore drill* starts it from the last save, and is over when that is restored. Beside it `last_checkpoint` asks
whether the job left a save of its last step behind.

The *second restart* starts it from the save before the last one, to the end of the job. So the command must do the
same steps again, and save the same. Its word is not asked: the losses, samples and weights of these steps, and what was
saved last, must be the run's. Where a repeat of the run is the same bit for bit, this must be, too: the run is its
fault-free run's in all steps, or in as many before its first fault. Where it is not, it may be off by a few times as
much as the run is from its fault-free run in these steps, if the scenario bounds what each step computes.

The harness tells how each of them ended. Their logs, in `RUN/drill/` and `RUN/second-restart/`, must say the same; and
each is a run: all questions are put to its log, and what they find is told here.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.judge.bounds import BOUNDS, LastCheckpointBounds
from harness.judge.facts import by_time, deaths, losses, ranks, times
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.evidence import DRILL
from harness.judge.facts.evidence import SECOND as SECOND_FOLDER
from harness.judge.facts.known import By
from harness.judge.facts.losses import CURVES, WORDS, Comparison
from harness.judge.facts.made_as_asked import Asked
from harness.judge.facts.restarts import restore
from harness.judge.facts.saves import Save, Saves
from harness.judge.score import Evidence, Expectation, Score, ScoreResult, judge
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, Verdict, failed, unknown
from harness.timeline import window
from harness.timeline.lineage import NEVER
from harness.timeline.save_events import FAILED
from harness.timeline.sorted_events import CLEAN_CODES, first_strike
from harness.timeline.timeline import Floats, Process, Timeline
from harness.units import counted, format_duration

NAME = "last_checkpoint.max_steps_behind"
CHECKPOINTS = "checkpoints"  # the folder, where the plan names none
BAND_FACTOR, FLOOR_ULPS = 3.0, 16.0  # times the run's own distance, and of rounding
SAMPLES = {"first": "position", "count": "number of samples", "digest": "digest"}  # in words
OF_EACH_RANK = {**WORDS, "weights": "digest of the weights", "rank_samples": "number of samples"}
MARGIN_NS = 10**9  # a harness may be held up for a moment between what it does and what it tells
# What is no finding in a drill, which ends when it has restored; or in a second restart, whose steps are asked apart.
CUT_SHORT = {"job.all_nodes_used", "result.told_as_usual", "promised-told"}
ASKED_APART = {"again.no_standstill", "promised-told"}
NO_END, NO_LOG = "no end", "no log"
NO_BOUND = "the scenario sets no bound on what each step computes"


@dataclass(frozen=True)
class Drill:
    """One of the two. `ends`: what follows from each end but the good one."""

    item: str
    none: str  # said where none was made
    good: str  # its outcome where it did what it should
    empty: str  # its outcome where it had nothing to do
    step: str  # the field that tells the step it went on from
    ends: Mapping[str, Claim]

    def silent(self, run: Timeline, told: Mapping[str, Any]) -> str:
        """Why it says nothing of the job; an empty text: it does."""
        if not told and not run.drills:
            off = (run.plan.get("workload") or {}).get("restore_drill") is False
            return "restore_drill is off" if off else self.none
        return str(told.get("reason") or "it tells nothing") if told.get("outcome") == self.empty else ""

    def ended(self, told: Mapping[str, Any], log: Timeline | str) -> Claim | None:
        """`None`: it did what it should, and left a log."""
        end, why = str(told.get("outcome")), told.get("reason")
        if end not in self.ends:
            done = end == self.good and type(told.get(self.step)) is int
            if done and isinstance(log, Timeline):
                return None
            end, why = (NO_LOG, log) if done else (NO_END, "")
        claim = self.ends[end]
        return replace(claim, words=claim.words.format(step=told.get("step")) + (f": {why}" if why else ""))


RESTORE = Drill(
    item=LastCheckpointBounds.by_default,
    none="no restore drill was run",
    good="restored",
    empty="untold",
    step="restored_step",
    ends={
        "scratch": failed(Code.DRILL_FROM_SCRATCH, "the restore drill started from scratch"),
        "failed": failed(Code.DRILL_FAILED, "the restore drill ended before it had restored anything"),
        "timeout": unknown(Code.DRILL_TIMEOUT, "the restore drill restored nothing in time"),
        "error": unknown(Code.DRILL_ERROR, "the restore drill could not be run"),
        NO_END: unknown(Code.DRILL_NO_END, "the restore drill has no end in the log"),
        NO_LOG: unknown(Code.DRILL_NO_LOG, "the restore drill left no log that can be read"),
    },
)
SECOND = Drill(
    item=BOUNDS["second_restart"].by_default,
    none="none was made",
    good="done",
    empty="skipped",
    step="step",
    ends={
        "failed": failed(Code.SECOND_FAILED, "a restart from the save of step {step} failed"),
        "timeout": unknown(Code.SECOND_TIMEOUT, "a restart from the save of step {step} did not end"),
        "error": unknown(Code.SECOND_ERROR, "it could not be made"),
        NO_END: unknown(Code.SECOND_NO_END, "it has no end in the log"),
        NO_LOG: unknown(Code.SECOND_NO_LOG, "it left no log that can be read"),
    },
)


# The restore drill, and the last save


class LastCheckpoint(Score):
    name = "last_checkpoint"
    order = 42

    def score(self, evidence: Analysis, bounds: LastCheckpointBounds | None) -> ScoreResult:
        newest = max((save.step for save in evidence.saves.good if save.holds != ("model",)), default=0)
        told = evidence.run.drill or {}
        restored = told.get("restored_step")
        values: dict[str, Any] = {"committed_step": newest or None, "restored_step": restored}
        values |= {name: told.get(name) for name in ("outcome", "seconds", "gpu_seconds")}
        if bounds is None:
            return ScoreResult(values)
        why = RESTORE.silent(evidence.run, told)
        if why:
            found = [*_last_save(evidence), *_damaged(evidence)]
        else:
            found = [*_loaded(evidence, told, newest, bounds.max_steps_behind), *_last_save(evidence)]
        if why and not found:
            return ScoreResult(values, not_judged=[(RESTORE.item, why)])
        bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
        observed = f"step {restored}" if isinstance(restored, int) else str(told.get("outcome") or "no end")
        observed = "—" if why else observed
        if not found:
            return ScoreResult(values, [Expectation(NAME, bound, observed, Verdict.PASS)])
        lines = []
        for claim in found:
            verdict = Verdict.INCONCLUSIVE if claim.good is None else Verdict.FAIL
            more: dict[str, Any] = {"code": claim.code, "doubt": claim.doubt, "rests_on": claim.rests_on}
            lines.append(Expectation(NAME, bound, observed, verdict, claim.words, **more))
        return ScoreResult(values, lines)


def _loaded(evidence: Analysis, told: Mapping[str, Any], newest: int, behind: int) -> Iterator[Claim]:
    """What the harness saw, unless the drill's own log says otherwise. Nothing: the checkpoint can be loaded."""
    run, log = evidence.run, evidence.drill
    ended = RESTORE.ended(told, log)
    if ended is not None:
        yield _of_end(told, newest, ended)
    elif isinstance(log, Timeline):
        step, stride = told["restored_step"], run.stride
        workers = [each for each in log.processes if each.restored is not None or each.first_step is not None]
        if not workers or not all(_went_on_from(each, step, stride) for each in workers):
            text = f"the restore drill's workers do not say that they restored step {step}"
            yield unknown(Code.DRILL_UNCONFIRMED, text)
        elif step < newest - behind:
            text = f"only the checkpoint of step {step} could be loaded, though one of step {newest} had been committed"
            yield failed(Code.DRILL_OLDER, text)
        else:
            elsewhere = (*_from_elsewhere(evidence, workers, step, DRILL), *_less_than_saved(evidence, log))
            another = (*_another_time(run, told, log), *_another_plan(run, log), *_another_step(told))
            no_end = {"end-known"} if log.outcome in (None, "interrupted") else set()
            left_open = itertools.chain(
                (unknown(Code.DRILL_ANOTHER_TIME, f"the restore drill's {text}") for text in another),
                _by_few(run, workers),
                (unknown(Code.DRILL_FEW_RANKS, f"the restore drill: {text}") for text in _on_few_nodes(run, workers)),
                _not_committed(evidence.saves, step),
                (unknown(Code.DRILL_ELSEWHERE, f"the restore drill's {text}") for text in elsewhere),
                _not_in_the_copy(log, step),
                _holds_less(evidence, step),
                _other_copy(run, log, step, Code.DRILL_ELSEWHERE),
                _crashed(log),
                (
                    unknown(Code.DRILL_FAILED, f"the restore drill: {text}")
                    for text in _as_a_run(evidence, log, CUT_SHORT | no_end)
                ),
            )
            yield from itertools.islice(left_open, 1)


def _of_end(told: Mapping[str, Any], newest: int, ended: Claim) -> Claim:
    """A drill that loads nothing proves something only where something had been committed."""
    if told.get("outcome") not in RESTORE.ends:
        return ended
    if not newest:
        return unknown(ended.code, f"{ended.words}, and no checkpoint had been committed", Doubt.NOTHING_COMMITTED)
    return replace(ended, words=f"{ended.words}, though a checkpoint of step {newest} had been committed")


def _went_on_from(worker: Process, step: int, stride: int) -> bool:
    """As it said, or else as its first step shows."""
    if worker.restored_step is not None:
        return worker.restored_step == step
    return worker.first_step is not None and step < worker.first_step <= step + stride


def _another_step(told: Mapping[str, Any]) -> Iterator[str]:
    """The harness names one save at its begin and at its end."""
    steps = (told.get("begun") or {}).get("step"), told.get("step")
    if None not in steps and steps[0] != steps[1]:
        yield f"save was of step {steps[0]} when it was begun, and of step {steps[1]} when it was over"


def _by_few(run: Timeline, workers: Sequence[Process]) -> Iterator[Claim]:
    """Each rank that told of itself in the run must have restored, in a world as large as the planned one."""
    ranks = run.planned_size.world_size or run.largest_world
    if ranks <= 0:
        yield unknown(Code.DRILL_UNKNOWN_RANKS, "the number of ranks in the restore drill is not known")
    speakers = {process.rank for process in run.processes if process.rank < ranks} or set(range(ranks))
    told_by = len(speakers & {each.rank for each in workers})
    if told_by < len(speakers):
        text = f"only {told_by} of the restore drill's {len(speakers)} ranks say that they restored"
        yield unknown(Code.DRILL_FEW_RANKS, text)
    world = max(each.world_size for each in workers)
    if world != ranks:
        text = f"the restore drill's workers were a world of {world}, not of {ranks} ranks"
        yield unknown(Code.DRILL_FEW_RANKS, text)


def _on_few_nodes(run: Timeline, workers: Sequence[Process]) -> Iterator[str]:
    """As many nodes as the run's last world had, if it is as large."""
    world = [run.processes[row] for row in run.epochs[-1].processes] if run.epochs else []
    last, used = len({each.node for each in world}), len({each.node for each in workers})
    if workers and used < last and workers[0].world_size == world[0].world_size:
        yield f"its workers were on {counted(used, 'node')}, and the run's on {last}"


def _not_committed(saves: Saves, step: int) -> Iterator[Claim]:
    if step not in {max(save.step, 0) for save in saves.whole}:
        text = f"the restore drill loaded a checkpoint of step {step}, which the job did not report as committed"
        yield unknown(Code.DRILL_NOT_COMMITTED, text)


def _from_elsewhere(evidence: Analysis, workers: Sequence[Process], step: int, folder: str) -> Iterator[str]:
    """Which rank restored something else than what the job had committed, as its copy in this folder."""
    saves, copies = evidence.saves, _copies(evidence.run, evidence.saves, folder)
    for each in workers:
        path = each.source or ""
        text = f"rank {each.rank} restored {path}, which is"
        if path.startswith("/") and not any(place in path for place in copies):
            yield f"{text} not in the copy of the checkpoints"
        other = saves.other_at_path(path.replace(f"/{folder}/", "/", 1), step, NEVER)
        if other is not None:
            yield f"{text} of step {other}, not of step {step}"


def _less_than_saved(evidence: Analysis, log: Timeline) -> Iterator[str]:
    """Which rank restored other bytes than were committed, or not as much of the state as the run's own restarts."""
    usual = [each.entered for restart in evidence.restarts[1:] for each in restart.restores]
    for number, worker in enumerate(log.processes):
        if worker.took is None:
            continue
        each = restore(log, evidence.saves, number, worker.took, worker.first_step or 0)
        if each.is_another:
            yield each.is_another
        entered = {each.entered, *usual} if each.entered else set()
        if ("model",) in entered and any(len(parts) > 1 for parts in entered):
            yield f"rank {each.rank} or a restart of the run restored its model alone, and the other more of the state"


def _holds_less(evidence: Analysis, step: int) -> Iterator[Claim]:
    """A last save without the optimizer's state loads well, and training goes on from it with another one."""
    since = evidence.run.epochs[-1].begin if evidence.run.epochs else 0
    if found := evidence.saves.store.holds_less(step, since):
        text = f"the checkpoint of step {step} that the restore drill loaded holds {found[0]} tensors, and the others"
        yield unknown(Code.DRILL_HOLDS_LESS, f"{text} at least {found[1]}")


def _not_in_the_copy(log: Timeline, step: int) -> Iterator[Claim]:
    """A drill saves nothing: what the harness sees there is the copy."""
    there = {_step(event) for event in log.published}
    if there and 0 not in there and step not in there:
        text = f"the restore drill restored step {step}, and the harness saw only step {max(there)} in the copy"
        yield unknown(Code.DRILL_ELSEWHERE, text)


def _other_copy(run: Timeline, log: Timeline, step: int, code: Code) -> Iterator[Claim]:
    """As the harness saw both: the copy holds what the job had saved."""
    mine, other = _tensors(run).get(step), _tensors(log).get(step)
    if mine and other and mine != other:
        yield unknown(code, f"the copy of the save of step {step} holds other tensors than the harness had seen in it")


def _crashed(log: Timeline) -> Iterator[Claim]:
    """The harness ends its workers, which is no crash of theirs."""
    for end in deaths.ends_of(log):
        if end.crashed or end.error:
            text = f"the restore drill: {end.describe(log.begin)}, though it had restored"
            yield unknown(Code.DRILL_CRASHED, text)


def _another_time(run: Timeline, told: Mapping[str, Any], log: Timeline) -> Iterator[str]:
    """It comes after the last step of the run, and its workers start and restore while the harness says it is made.
    The times of one clock are compared."""
    begun, over = (told.get("begun") or {}).get("at"), told.get("at")
    if begun is None or over is None:
        return
    last, margin = int(run.steps.end.max(initial=0)), MARGIN_NS + run.uncertainty_ns + log.uncertainty_ns
    if begun < last - margin:
        yield f"was begun {format_duration(last - begun)} before the last step of the run was over"
    if over < begun:
        yield f"was over {format_duration(begun - over)} before it was begun"
    for each in log.processes if run.clock == log.clock else ():
        restored = each.started if each.restored is None else each.restored
        if each.started < begun - margin:
            yield f"worker of rank {each.rank} started {format_duration(begun - each.started)} before it was begun"
        elif restored > over + margin:
            yield f"worker of rank {each.rank} restored {format_duration(restored - over)} after it was over"


def _another_plan(run: Timeline, log: Timeline, nodes: int | None = None) -> Iterator[str]:
    """An older harness wrote no plan into it."""
    if log.plan and (why := Asked.by(run, nodes=nodes).broken_by(log)):
        yield f"log is of another job: {why}"


def _as_a_run(evidence: Analysis, log: Timeline, but_for: Container[str]) -> Iterator[str]:
    """What all questions find in its log, beside those steps of the fault-free run; bounds are for the run alone. An
    older harness wrote no plan into it."""
    usual = evidence.fault_free
    beside = None if usual is None else window.fault_free_part(usual, log)
    card = judge(Evidence(replace(log, plan=log.plan | {"expect": {}}), beside), "") if log.plan else None
    yield from (found.text for found in card.findings if found.code not in but_for) if card else ()


def _copies(run: Timeline, saves: Saves, place: str) -> set[str]:
    """Parts of paths, one of which that of each copy holds: the run's own folder, as the job called it, and the drill's
    within it."""
    folder = str(((run.plan.get("workload") or {}).get("checkpoint") or {}).get("path") or CHECKPOINTS)
    within = f"/{folder.replace('{checkpoints}', CHECKPOINTS).removeprefix('{run_dir}/').strip('/')}/"
    told = {save.path.partition(within)[0] for save in saves.all if save.path.startswith("/") and within in save.path}
    return {f"/{each.rpartition('/')[2]}/{place}/" for each in told} or {f"/{place}/"}


def _last_save(evidence: Analysis) -> Iterator[Claim]:
    """What is wrong with the last save of a job that did all its steps, by its log and by the store: it is none, or
    failed, or was never made."""
    run, saves = evidence.run, evidence.saves
    last = saves.good[-1].ended if saves.good else None
    if not run.finished or run.outcome != "completed" or (run.torn and last is None):
        return
    after = [save for save in saves.all if save.last_at > (run.begin if last is None else last)]
    undisturbed = [save for save in after if not _is_disturbed(evidence, save.last_at)]
    none = [saves.none[save] for save in undisturbed if save in saves.none]
    if none:
        text = f"the last checkpoint, of step {none[-1].save.step}, is none: {none[-1].why}"
        yield Claim(Code.SAVE_LAST_IS_NONE, text, False if none[-1].by is By.SEEN else None)
    elif saves.whole and (newest := max(saves.store.left_steps, default=0)) > max(save.step for save in saves.whole):
        text = f"the harness found a checkpoint of step {newest} at the end, and nobody said that it was committed"
        yield unknown(Code.SAVE_LAST_NEVER_ENDED, text)
    else:
        absent = itertools.islice(_not_saved(evidence, undisturbed), 1)
        yield from (failed(*each, Ground(Kind.ABSENCE)) for each in absent)


def _not_saved(evidence: Analysis, after: Sequence[Save]) -> Iterator[tuple[Code, str]]:
    """`after`: what was told after the last good save, while nothing disturbed the job."""
    run, saves = evidence.run, evidence.saves
    if tried := [save for save in after if save.how == FAILED]:
        yield Code.SAVE_LAST_FAILED, f"the last checkpoint, of step {tried[-1].step}, failed"
    begun = [save for save in saves.all if save.begun is not None]
    if begun and not any(save.how and save.step >= begun[-1].step for save in saves.all):
        ended_well = run.processes[begun[-1].process].exit_code in CLEAN_CODES
        if ended_well and not _is_disturbed(evidence, begun[-1].at):
            text = f"the last checkpoint, of step {begun[-1].step}, was started but never committed"
            yield Code.SAVE_LAST_NEVER_ENDED, text
    newest, wanted = max(saves.steps, default=0), _wanted(evidence)
    if newest < wanted and not _is_disturbed(evidence, int(run.progress.end[-1])):
        text = f"the job ended at step {run.reached_step}, and its last checkpoint is of step {newest}"
        yield Code.SAVE_LAST_MISSING, f"{text}: without a fault it is of step {wanted} or later"


def _is_disturbed(evidence: Analysis, at: int) -> bool:
    return by_time.touches(evidence.disturbed, at, at)


def _damaged(evidence: Analysis) -> Iterator[Claim]:
    """Without a drill nothing shows whether it can still be loaded."""
    run, last = evidence.run, evidence.saves.good[-1].ended if evidence.saves.good else None
    if run.finished and run.outcome == "completed" and last is not None:
        damaging = [each for each in run.faults if each.damages and each.injected is not None and last <= each.injected]
        for fault in damaging[:1]:
            text = f"{fault.id} damaged the last checkpoint, and no other was committed afterwards"
            yield unknown(Code.SAVE_LAST_DAMAGED, text)


def _wanted(evidence: Analysis) -> int:
    """Of which step the last checkpoint is at least: as far before the last step as in the fault-free run; where that
    made none of its own at its end, up to an interval further."""
    run, usual, fault_free = evidence.run, evidence.fault_free_saves, evidence.fault_free
    cut = not run.epochs or any(run.processes[row].cut or run.processes[row].torn for row in run.epochs[-1].processes)
    if usual is None or fault_free is None or cut or evidence.flaw(fault_free) or not usual.whole:
        return 0
    if not run.checkpoints or not len(usual.steps) or run.beside.job_goes_on:
        return 0
    apart = np.diff(usual.steps, prepend=0)
    final = usual.whole[-1].kind == "final" or (len(apart) > 2 and len(set(apart[1:-1])) == 1 and apart[-1] < apart[-2])
    further = 0 if final else int(apart.max()) * (1 if run.saves_every_s is None else 2) - 1
    return run.reached_step - (fault_free.reached_step - int(usual.steps[-1])) - further


# The second restart


class SecondRestart(Score):
    name = "second_restart"
    order = 43
    explained_by = ("saves.one_writer",)

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        run, told, log = evidence.run, evidence.run.second_restart or {}, _whole(evidence.second_restart)
        values: dict[str, Any] = {name: told.get(name) for name in ("outcome", "step", "seconds", "gpu_seconds")}
        values["steps"] = 0
        if bounds is None:
            return ScoreResult(values)
        if why := SECOND.silent(run, told) or _before_recovery(evidence, told):
            return ScoreResult(values, not_judged=[(SECOND.item, why)])
        ended = SECOND.ended(told, log)
        if ended is not None or isinstance(log, str):
            return ScoreResult(values, reasons=_worst([ended] if ended else []))
        step, compared = int(told["step"]), losses.compare(evidence.curve, losses.surviving(log.steps))
        values["steps"] = len(compared.step)
        came = [*_restored(log, step), *_all_steps(evidence, log, step, told)]
        if came:
            return ScoreResult(values, reasons=_worst(came))
        copied = (each.words for each in times.copies(times.Told(log), [times.Told(run)]))
        another = (*_another_time(run, told, log), *_another_plan(run, log, log.planned_size.nodes), *copied)
        short = {"job.finished"} if log.outcome == "completed" and not log.finished else set()
        left_open = [
            *(unknown(Code.SECOND_ANOTHER_TIME, f"its {text}") for text in another),
            *_on_all_ranks(evidence, log, step),
            *(unknown(Code.SECOND_FAILED, text) for text in _as_a_run(evidence, log, ASKED_APART | short)),
        ]
        why = _no_comparison(evidence, log, compared, step)
        if why and not left_open:
            return ScoreResult(values, not_judged=[(SECOND.item, why)])
        if why:
            return ScoreResult(values, reasons=_worst(left_open))
        results = [*_samples(evidence, compared), *_losses(evidence, compared)]
        if _repeats(evidence, compared):
            results += [*_by_rank(evidence, log), *_saved(evidence, log, step)]
        differ = _worst([*results, *left_open])
        same = f"a second restart did {counted(len(compared.step), 'step')} once more"
        unbound = [(f"losses of the {SECOND.item}", NO_BOUND)] if _is_unbound(evidence, compared) else []
        return ScoreResult(values, reasons=differ, summary="" if differ else same, not_judged=unbound)


def _worst(found: Sequence[Claim]) -> list[Claim]:
    """One of them; sooner one that is proved."""
    worst = sorted(found, key=lambda each: each.good is None)[:1]
    return [replace(each, words=f"second_restart: {each.words}") for each in worst]


def _whole(log: Timeline | str) -> Timeline | str:
    """A log that holds all that was told; or why it does not."""
    if isinstance(log, str):
        return log
    lost = [f"{log.dropped} events were lost to a full disk"] if log.dropped else []
    lost += [f"its log lacks {counted(log.lost, 'line')}"] if log.lost else []
    return next(iter([*log.problems, *lost]), log)


def _before_recovery(evidence: Analysis, told: Mapping[str, Any]) -> str:
    """Whether the save that it began with is of before the last recovery, in words."""
    run, step = evidence.run, told.get("step")
    if not isinstance(step, int) or len(run.epochs) < 2 or step >= run.epochs[-1].first:
        return ""
    first = run.epochs[-1].first
    saves = len({save.step for save in evidence.saves.whole if save.step >= first})
    return f"only {counted(run.reached_step - first + 1, 'step')} and {counted(saves, 'save')} after the recovery"


def _on_all_ranks(evidence: Analysis, log: Timeline, step: int) -> Iterator[Claim]:
    """Each rank restored the copy, and did all steps with the others."""
    workers = [each for each in log.processes if each.restored is not None]
    tellers = {each.rank for each in evidence.run.processes if each.restored_step}
    silent = {each.rank for each in log.processes if each.first_step is not None and each.restored_step is None}
    for rank in sorted(tellers & silent)[:1]:
        yield unknown(Code.SECOND_OTHER_STEP, f"rank {rank} did not say what it restored, as it did in the run")
    yield from (unknown(Code.SECOND_FAILED, text) for text in _on_few_nodes(evidence.run, log.processes))
    elsewhere = (*_from_elsewhere(evidence, workers, step, SECOND_FOLDER), *_less_than_saved(evidence, log))
    yield from (unknown(Code.SECOND_OTHER_STEP, text) for text in itertools.islice(elsewhere, 1))
    yield from _other_copy(evidence.run, log, step, Code.SECOND_OTHER_TENSORS)
    apart = ranks.weights_apart(log.steps)[1]
    yield from (unknown(Code.SECOND_OTHER_TENSORS, f"its replicas drifted apart: {each}") for each in apart[:1])


def _restored(again: Timeline, step: int) -> Iterator[Claim]:
    """It went on from the save that was left, as its workers say, or as their first step shows."""
    told = {process.restored_step for process in again.processes} - {None}
    first = again.epochs[0].first if again.epochs else None
    if 0 in told:
        yield failed(Code.SECOND_FROM_SCRATCH, f"it started from scratch, though the save of step {step} was there")
    elif (told and told != {step}) or (first is not None and not step < first <= step + again.stride):
        came = f"said that it restored {sorted(s for s in told if s is not None)}" if told else "told no restore"
        text = f"after the save of step {step} it {came}, and its first step was {first}"
        yield unknown(Code.SECOND_OTHER_STEP, text)


def _all_steps(evidence: Analysis, again: Timeline, step: int, told: Mapping[str, Any]) -> Iterator[Claim]:
    """To the end of the run, with a save there, if the run made one."""
    run = evidence.run
    reached = int(again.steps.step.max(initial=0))  # by any rank: a line may be lost
    if reached < run.reached_step:
        yield failed(Code.SECOND_SHORT, f"it ended after step {reached}, and the run after step {run.reached_step}")
    usual = evidence.fault_free
    if reached > run.reached_step and usual is not None and usual.planned_steps is None:
        # A job that its time ends does not end at one step with and without a fault.
        compared = losses.compare(evidence.curve, losses.surviving(again.steps))
        ends_there = compared.identical and usual.reached_step == run.reached_step
        text = f"it went on to step {reached}; the run ended after step {run.reached_step}"
        yield Claim(Code.SECOND_LONG, text, False if ends_there else None)
    last, saved = max((_step(event) for event in run.published), default=0), told.get("saved_step")
    if last > step and isinstance(saved, int) and saved < last:
        yield failed(Code.SECOND_SAVED_LESS, f"it saved nothing after step {saved}, and the run saved step {last}")
    mine, own = max(evidence.saves.steps, default=0), max(Saves(again).steps, default=0)
    if run.checkpoints and mine > step and own < mine:
        text = f"its own log tells of no save after step {own}, and the run's of step {mine}"
        yield unknown(Code.SECOND_SAVED_LESS, text)


def _no_comparison(evidence: Analysis, again: Timeline, compared: Comparison, step: int) -> str:
    """Why its figures prove nothing; an empty text: nothing is wrong."""
    run = evidence.run
    bounds = (run.plan.get("expect") or {}).get("loss_continuity")
    if not isinstance(bounds, Mapping):
        return NO_BOUND
    if len(run.epochs) < 2:
        return "nothing in this run restarted the job, so that restarts change nothing is not asked"
    if not len(compared.step):
        return "it tells no step that the run told, too"
    if run.epochs[-1].size != again.largest_world:
        return f"the run ended with {run.epochs[-1].size} ranks, and it had {again.largest_world}"
    if evidence.incomparable:
        return evidence.incomparable
    begun = run.steps.begin[run.steps.survives & (run.steps.step > step)]
    if len(begun) and evidence.disturbed and evidence.disturbed[-1][1] > int(begun.min()):
        return f"a fault was at work after step {step}"
    return ""


def _repeats(evidence: Analysis, compared: Comparison) -> bool:
    """Whether a repeat of the run is the same bit for bit: as many steps before the first fault as it did once more
    are those of the fault-free run, or all steps are."""
    usual, run = evidence.comparison, evidence.run
    struck = min(first_strike(run.faults), run.end)
    last = int(run.steps.step[run.steps.survives & (run.steps.end < struck)].max(initial=0))
    parted = usual.first_divergent_step if usual is not None else None
    before = int(np.sum(usual.step <= last)) if usual is not None else 0
    return usual is not None and (usual.identical or (before >= len(compared.step) and (parted or NEVER) > last))


def _is_unbound(evidence: Analysis, compared: Comparison) -> bool:
    """Whether nothing says how near its losses must be: the learning rate is a pure function of the step."""
    final = evidence.run.plan["expect"]["loss_continuity"].get("mode") == "final"
    return final and not _repeats(evidence, compared)


def _bands(evidence: Analysis, compared: Comparison) -> dict[str, Floats]:
    """How far each figure may be off: nothing, where a repeat is the same."""
    usual, same = evidence.comparison, _repeats(evidence, compared)
    rows = np.isin(usual.step, compared.step) if usual else np.zeros(0, np.bool_)
    bands = {}
    for name in CURVES:
        mine = getattr(compared.run, name)
        apart = _apart(getattr(usual.run, name)[rows], getattr(usual.fault_free, name)[rows]) if usual else mine
        most = float(apart.max(initial=0.0))
        bands[name] = np.zeros(len(mine)) if same else np.maximum(BAND_FACTOR * most, FLOOR_ULPS * losses.ulps(mine))
    return bands


def _apart(mine: Floats, other: Floats) -> Floats:
    """What one of the two does not tell is no distance."""
    return np.asarray(np.where(np.isfinite(mine) & np.isfinite(other), losses.distance(mine, other), 0.0))


def _losses(evidence: Analysis, compared: Comparison) -> Iterator[Claim]:
    """The first step in which a figure is off. Where a repeat is not the same, one run's distance is too little to
    accuse another."""
    claims = failed if _repeats(evidence, compared) else unknown
    bands, found = _bands(evidence, compared), list[tuple[int, str]]()
    for name in ("lr",) if _is_unbound(evidence, compared) else CURVES:
        mine, other = getattr(compared.run, name), getattr(compared.fault_free, name)
        if len(alone := compared.alone(name)):
            text = f"{counted(len(alone), 'step')} at which only it, or only the run, tells the {WORDS[name]}"
            yield unknown(Code.SECOND_OTHER_LOSS, text)
        rows = np.flatnonzero(np.isfinite(mine) & (losses.distance(mine, other) > bands[name]))
        found += [(int(row), name) for row in rows[:1]]
    for row, name in sorted(found)[:1]:
        mine, other = getattr(compared.run, name)[row], getattr(compared.fault_free, name)[row]
        text = f"at step {compared.step[row]} its {WORDS[name]} is {other:.9g}, and the run's was {mine:.9g}"
        yield (failed if name == "lr" else claims)(Code.SECOND_OTHER_LOSS, text)


def _samples_bound(evidence: Analysis) -> bool:
    """Unless the scenario lets samples be repeated."""
    bounds = evidence.run.plan["expect"]["loss_continuity"]
    free = bounds.get("max_samples_repeated") or bounds.get("max_samples_skipped")
    return bounds.get("samples") != "reported" and not free


def _samples(evidence: Analysis, compared: Comparison) -> Iterator[Claim]:
    """The first step that consumed others, where both tell it."""
    for name, words in SAMPLES.items() if _samples_bound(evidence) else ():
        untold = 0 if name == "digest" else -1
        mine, other = getattr(compared.run, name), getattr(compared.fault_free, name)
        for row in np.flatnonzero((mine != untold) & (other != untold) & (mine != other))[:1]:
            text = f"at step {compared.step[row]} it consumed other data than the run: another {words}"
            yield failed(Code.SECOND_OTHER_SAMPLES, text)


def _by_rank(evidence: Analysis, again: Timeline) -> Iterator[Claim]:
    """What each rank tells of itself; where a repeat is the same."""
    run, of_samples = evidence.run, SAMPLES if _samples_bound(evidence) else {}
    if of_samples:  # by their indices, which each log numbers in its own way
        rows, others = losses.paired(again.steps, run.steps)
        numbers = again.steps.samples[rows], run.steps.samples[others]
        other = ~again.samples.equal(numbers[0], run.samples, numbers[1]) & (numbers[0] >= 0) & (numbers[1] >= 0)
        for row in rows[other][:1]:
            text = f"at step {again.steps.step[row]} rank {again.steps.rank[row]} consumed other samples than then"
            yield failed(Code.SECOND_OTHER_SAMPLES, text)
    for name, words in (OF_EACH_RANK | of_samples).items():
        rows, same = ranks.beside(again.steps, evidence.run.steps, name)
        for row in rows[~same][:1]:
            text = f"at step {again.steps.step[row]} the {words} of rank {again.steps.rank[row]} differs from the run's"
            yield failed(Code.SECOND_OTHER_LOSS, text)


def _saved(evidence: Analysis, again: Timeline, step: int) -> Iterator[Claim]:
    """The tensors of what both saved last, as the harness saw them; where a repeat is the same."""
    mine, other = _tensors(evidence.run), _tensors(again)
    differ = (saved for saved in mine.keys() & other.keys() if saved > step and mine[saved] != other[saved])
    if last := max(differ, default=0):
        text = f"the tensors in its save of step {last} differ from those in the run's"
        yield failed(Code.SECOND_OTHER_TENSORS, text)


def _tensors(run: Timeline) -> dict[int, str]:
    """By step: the digest of the tensors in the save that the harness saw last."""
    return {_step(event): str(event["tensors"]) for event in run.published if event.get("tensors")}


def _step(event: Mapping[str, Any]) -> int:
    step = event.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else 0


SCORES = (LastCheckpoint(), SecondRestart())
