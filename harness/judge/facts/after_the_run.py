"""What the harness makes after the run: the job's command starts once more, on a copy of what the run had saved.

The *restore drill* starts it from the last save, and is over when that is restored. The *second restart* starts it from
the save before the last one, to the end of the job. The harness tells how each ended. Each has a log of its own, and is
a run: the guarantees that hold for it are asked of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.judge.facts import deaths, ranks, times
from harness.judge.facts.analysis import Analysis, once
from harness.judge.facts.known import OFF, By
from harness.judge.facts.made_as_asked import Asked
from harness.judge.facts.restarts import restore
from harness.judge.facts.saves import Saves
from harness.timeline.lineage import NEVER
from harness.timeline.timeline import Process, Timeline
from harness.units import counted, format_duration

MARGIN_NS = 10**9  # a harness may be held up for a moment between what it does and what it tells
NOTHING_TO_DO, WELL = ("untold", "skipped"), ("restored", "done")
OPEN = {"timeout": "it did not end in time", "error": "it could not be made"}


@dataclass(frozen=True)
class Made:
    """One of the two. `told`: how it ended, by the harness. `step`: of the save that it went on from. One of these is
    so. `silent`: it says nothing of the job, and why; `failed`: how, as the harness saw it; `open`: why that is not
    known; `done`: it did what it was to do, by this log."""

    folder: str
    told: Mapping[str, Any]
    step: Any
    silent: str = ""
    failed: str = ""
    open: str = ""
    done: Timeline | None = None
    by: By = By.SEEN

    @property
    def is_drill(self) -> bool:
        return self.folder == "drill"


def newest_save(evidence: Analysis) -> int:
    """The newest step that was committed with more than the model; 0: none was."""
    return max((save.step for save in evidence.saves.good if save.holds != ("model",)), default=0)


@once
def restore_drill(evidence: Analysis) -> Made:
    """It proves nothing of a job that had saved nothing."""
    told = evidence.run.drill or {}
    words, step = ("no restore drill was run", "ended before it had restored anything"), told.get("restored_step")
    how = _how(evidence.run, "last_checkpoint", told, step, evidence.drill, *words)
    proves = newest_save(evidence) and "silent" not in how
    return Made("drill", told, step, by=By.SEEN if proves else By.MISSING, **how)


@once
def second_restart(evidence: Analysis) -> Made:
    """One that began with a save of before the last recovery says nothing. Its log must hold all that was told."""
    run, told, log = evidence.run, evidence.run.second_restart or {}, evidence.second_restart
    step, first = told.get("step"), run.epochs[-1].first if len(run.epochs) > 1 else 0
    if isinstance(log, Timeline) and (lost := max(log.lost, log.dropped)):
        log = f"its log lacks {counted(lost, 'line')}"
    elif isinstance(log, Timeline):
        log = next(iter(log.problems), log)
    how = _how(run, "second_restart", told, step, log, "none was made", "failed")
    if "silent" not in how and isinstance(step, int) and step < first:
        saves = counted(len({save.step for save in evidence.saves.whole if save.step >= first}), "save")
        how = {"silent": f"only {counted(run.reached_step - first + 1, 'step')} and {saves} after the recovery"}
    return Made("second-restart", told, step, **how)


def _how(
    run: Timeline, score: str, told: Mapping[str, Any], step: Any, log: Timeline | str, none: str, failed: str
) -> dict[str, Any]:
    outcome, why = str(told.get("outcome")), f": {told['reason']}" if told.get("reason") else ""
    if (run.plan.get("expect") or {}).get(score) == OFF:
        return {"silent": "the scenario switches it off"}
    if not told and not run.drills:
        off = (run.plan.get("workload") or {}).get("restore_drill") is False
        return {"silent": "restore_drill is off" if off else none}
    if outcome in NOTHING_TO_DO:
        return {"silent": why[2:] or "it tells nothing"}
    if outcome in ("scratch", "failed"):
        return {"failed": (failed if outcome == "failed" else "started from scratch") + why}
    if outcome in OPEN:
        return {"open": OPEN[outcome] + why}
    if outcome not in WELL or type(step) is not int:
        return {"open": "it has no end in the log"}
    return {"done": log} if isinstance(log, Timeline) else {"open": f"it left no log that can be read: {log or 'none'}"}


def otherwise(evidence: Analysis, made: Made) -> Iterator[str]:
    """What is not known of one of the two, or was not as asked. A drill saves nothing: what the harness sees there is
    the copy; and it ends its workers, which is no crash of theirs."""
    run, log, step = evidence.run, made.done, made.step
    if log is None:
        yield from [made.open] if made.open else []
        return
    yield from another_time(run, made.told, log)
    if log.plan and (why := Asked.by(run, nodes=log.planned_size.nodes).broken_by(log)):
        yield f"its log is of another job: {why}"
    yield from of_another_step(evidence, log, made)
    if made.is_drill:
        yield from _by_few(run, log)
        if step not in {max(save.step, 0) for save in evidence.saves.whole}:
            yield f"it loaded a checkpoint of step {step}, which the job did not report as committed"
        for end in deaths.ends_of(log):
            if end.crashed or end.error:
                yield f"{end.describe(log.begin)}, though it had restored"
    elif log.outcome != "completed":
        yield f"its log does not say that it completed: {log.outcome_reason or log.outcome}"
    elif apart := ranks.weights_apart(log.steps)[1]:
        yield f"its replicas drifted apart: {apart[0]}"
    elif run.checkpoints and max(Saves(log).steps, default=0) < max(evidence.saves.steps, default=0) > step:
        yield "its own log tells of no save as late as the run's last one"
    yield from _from_elsewhere(evidence, log, made)
    mine, other = tensors(run).get(step), tensors(log).get(step)
    if mine and other and mine != other:
        yield f"the copy of the save of step {step} holds other tensors than the harness had seen in it"
    yield from (each.words for each in times.copies(times.Told(log), [times.Told(run)]))


def another_time(run: Timeline, told: Mapping[str, Any], log: Timeline) -> Iterator[str]:
    """It comes after the last step of the run, and its workers start and restore while the harness says it is made.
    The times of one clock are compared."""
    begun, over = (told.get("begun") or {}).get("at"), told.get("at")
    if begun is None or over is None:
        return
    last, margin = int(run.steps.end.max(initial=0)), MARGIN_NS + run.uncertainty_ns + log.uncertainty_ns
    if begun < last - margin:
        yield f"it was begun {format_duration(last - begun)} before the last step of the run was over"
    for each in log.processes if run.clock == log.clock else ():
        restored = each.started if each.restored is None else each.restored
        if begun - each.started > margin:
            yield f"rank {each.rank} started {format_duration(begun - each.started)} before it was begun"
        elif restored - over > margin:
            yield f"rank {each.rank} restored {format_duration(restored - over)} after it was over"


def of_another_step(evidence: Analysis, log: Timeline, made: Made) -> Iterator[str]:
    """As its ranks said, or else as their first step shows; in a drill, of each of them."""
    workers = _workers(log)
    told = {each.restored_step for each in workers} - {None}
    shown: list[int | None] = [epoch.first for epoch in log.epochs[:1]]
    if made.is_drill:
        shown = [each.first_step for each in workers if each.restored_step is None]
    follows = all(at and made.step < at <= made.step + evidence.run.stride for at in shown)
    if not workers or told - {made.step} or not follows:
        said = f"; they said {sorted(at for at in told if at is not None)}" if told else ""
        yield f"its ranks do not say that they restored step {made.step}, nor does their first step{said}"


def _by_few(run: Timeline, log: Timeline) -> Iterator[str]:
    """Each rank that told of itself in the run tells that it restored, in a world as large as the planned one."""
    ranks, workers = run.planned_size.world_size or run.largest_world, _workers(log)
    speakers = {process.rank for process in run.processes if process.rank < ranks} or set(range(ranks))
    if silent := speakers - {each.rank for each in workers}:
        yield f"only {len(speakers - silent)} of its {len(speakers)} ranks say that they restored"
    if (world := max((each.world_size for each in workers), default=0)) != ranks:
        yield f"its ranks were a world of {world}, not of {ranks}"


def _workers(log: Timeline) -> list[Process]:
    return [each for each in log.processes if each.restored is not None or each.first_step is not None]


def _from_elsewhere(evidence: Analysis, log: Timeline, made: Made) -> Iterator[str]:
    """Another save than the copy, other bytes than were committed, or less of the state than the run's own restarts."""
    usual = [each.entered for restart in evidence.restarts[1:] for each in restart.restores]
    for number, worker in enumerate(log.processes):
        path = worker.source or ""
        if path.startswith("/") and f"/{made.folder}/" not in path:
            yield f"rank {worker.rank} restored {path}, which is not in the copy of the checkpoints"
        other = evidence.saves.other_at_path(path.replace(f"/{made.folder}/", "/", 1), made.step, NEVER)
        if path and other is not None:
            yield f"rank {worker.rank} restored {path}, which is of step {other}, not of step {made.step}"
        took = restore(log, evidence.saves, number, worker.took or {"at": 0}, worker.first_step or 0)
        if took.is_another:
            yield took.is_another
        entered = {took.entered, *usual} if took.entered else set()
        if ("model",) in entered and any(len(parts) > 1 for parts in entered):
            yield f"rank {took.rank} or a restart of the run restored its model alone, and the other more of the state"


def tensors(run: Timeline) -> dict[int, str]:
    """By step: the digest of the tensors in the save that the harness saw last."""
    return {event.get("step") or 0: str(event["tensors"]) for event in run.published if event.get("tensors")}
