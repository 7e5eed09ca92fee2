"""The restore drill and the second restart: two new starts of the job's command, on a copy of the run's saves.

The *restore drill* restores the last save, and then ends. The *second restart* starts from the save before the last
one, and goes on until the job ends. Guarantees that apply to a restore drill or second restart check its log like the
log of a run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.evidence import deaths
from harness.evidence.made_as_asked import Asked
from harness.evidence.work import Waited, waited
from harness.judge.bounds import OFF
from harness.judge.facts import times
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restarts import restore
from harness.judge.facts.saves import Saves
from harness.judge.thresholds import DRILL_HELD_UP_NS
from harness.timeline.lineage import NEVER, step_of
from harness.timeline.timeline import Timeline
from harness.units import counted, format_duration

OPEN = {"timeout": "it did not end in time", "error": "it could not be made"}
NO_SAVE = (
    ", as no save was seen: write {checkpoints} where the command names its folder for checkpoints, and say by "
    "`workload: {checkpoint: {path: …}}` if they lie deeper"
)
KINDS = {  # by folder: score, name of the step's field, words if none was made, words if it failed
    "drill": ("last_checkpoint", "restored_step", "no restore drill was run", "ended before it had restored anything"),
    "second-restart": ("second_restart", "step", "none was made", "failed"),
}


@dataclass(frozen=True)
class Made:
    """A restart that the harness makes after the run: a restore drill or a second restart. `told` is the harness's last
    logged event about the restart. `step` is the step of the restored save. One of four fields holds the result:
    `silent` (why there is no result), `failed` (how the restart failed), `open` (why the result is unknown) or `done`
    (the log of the restart). `waited` is the wait that may have ended in a timeout."""

    folder: str
    told: Mapping[str, Any]
    step: Any
    silent: str = ""
    failed: str = ""
    open: str = ""
    done: Timeline | None = None
    waited: Waited | None = None


def newest_save(evidence: Analysis) -> int:
    """Returns the step of the newest intact save that holds more than the model, or 0 if there is no such save."""
    return max((save.step for save in evidence.saves.good if save.holds != ("model",)), default=0)


def restore_drill(evidence: Analysis) -> Made:
    return _made(evidence.run, "drill", evidence.run.drill or {}, evidence.drill)


def second_restart(evidence: Analysis) -> Made:
    """Returns the run's second restart. A log that lacks lines or contradicts itself counts as unreadable."""
    log = evidence.second_restart
    if isinstance(log, Timeline):
        lost = [f"it lacks {counted(max(log.lost, log.dropped), 'line')}"] if log.lost or log.dropped else []
        log = next(iter([*log.problems, *lost]), log)
    return _made(evidence.run, "second-restart", evidence.run.second_restart or {}, log)


def _made(run: Timeline, folder: str, told: Mapping[str, Any], log: Timeline | str) -> Made:
    score, field, none, failed = KINDS[folder]
    made, outcome = Made(folder, told, told.get(field)), str(told.get("outcome"))
    why = f": {told['reason']}" if told.get("reason") else ""
    if (run.plan.get("expect") or {}).get(score) == OFF:
        return replace(made, silent="the scenario switches it off")
    if not told and not run.drills:
        off = (run.plan.get("workload") or {}).get("restore_drill") is False
        unseen = folder == "drill" and not run.checkpoints and run.faults and not off and run.outcome == "completed"
        return replace(made, silent="restore_drill is off" if off else none + NO_SAVE * bool(unseen))
    if outcome in ("untold", "skipped"):
        return replace(made, silent=why[2:] or "it tells nothing")
    if outcome in ("scratch", "failed"):
        held_up = waited(log, log.begin) if outcome == "failed" and isinstance(log, Timeline) else None
        return replace(made, failed=(failed if outcome == "failed" else "started from scratch") + why, waited=held_up)
    if outcome in ("restored", "done") and type(made.step) is int:
        if isinstance(log, Timeline):
            return replace(made, done=log)
        return replace(made, open=f"it left no log that can be read: {log or 'none'}")
    return replace(made, open=OPEN[outcome] + why if outcome in OPEN else "it has no end in the log")


def not_as_asked(evidence: Analysis, made: Made) -> Iterator[str]:
    """Yields each way in which a drill or second restart differs from its plan, or why its result is unknown."""
    run, log, step = evidence.run, made.done, made.step
    if log is None:
        yield from [made.open] if made.open else []
        return
    yield from at_wrong_time(run, made.told, log)
    if log.plan and (why := Asked.by(run, nodes=log.planned_size.nodes, resumes_at=step).broken_by(log)):
        yield why
    if made.folder == "drill":
        yield from _by_few(run, log, step)
        if step not in {max(save.step, 0) for save in evidence.saves.whole}:
            yield f"it loaded a checkpoint of step {step}, which the job did not report as committed"
        for end in deaths.ends_of(log):  # the harness ends the other workers itself
            if end.crashed or end.error:
                yield f"{deaths.describe_alike([end], log.begin)}, though it had restored"
    elif log.outcome != "completed":
        yield f"its log does not say that it completed: {log.outcome_reason or log.outcome}"
    elif run.checkpoints and max(Saves(log).steps, default=0) < max(evidence.saves.steps, default=0) > step:
        yield "its own log tells of no save as late as the run's last one"
    yield from _from_elsewhere(evidence, log, made)
    mine, other = tensors(run).get(step), tensors(log).get(step)
    if mine and other and mine != other:
        yield f"the copy of the save of step {step} holds other tensors than the harness had seen in it"
    yield from (each.words for each in times.copies(times.Told(log), [times.Told(run)]))


def at_wrong_time(run: Timeline, told: Mapping[str, Any], log: Timeline) -> Iterator[str]:
    """Yields a text if a restore drill began before the run's last step ended, or if a worker started outside the
    drill's time."""
    begun, over = (told.get("begun") or {}).get("at"), told.get("at")
    if begun is None or over is None:
        return
    last, margin = int(run.steps.end.max(initial=0)), DRILL_HELD_UP_NS + run.uncertainty_ns + log.uncertainty_ns
    if begun < last - margin:
        yield f"it was begun {format_duration(last - begun)} before the last step of the run was over"
    for each in log.processes if run.clock == log.clock else ():
        outside = max(begun - each.started, (each.restored or each.started) - over)
        if outside > margin:
            yield f"rank {each.rank} started or restored {format_duration(outside)} outside of the time of it"


def _by_few(run: Timeline, log: Timeline, step: int) -> Iterator[str]:
    size = run.planned_size.world_size or run.largest_world
    speakers = {process.rank for process in run.processes if process.rank < size} or set(range(size))
    told = [each for each in log.processes if {each.restored_step, *map(step_of, each.idle)} - {None} == {step}]
    follows = range(step + 1, step + run.stride + 1)
    told += [each for each in log.processes if each.restored_step is None and each.first_step in follows]
    if silent := speakers - {each.rank for each in told}:
        yield f"only {len(speakers - silent)} of its {len(speakers)} ranks say that they restored step {step}"
    if (world := max((each.world_size for each in told), default=0)) != size:
        yield f"its ranks were a world of {world}, not of {size}"


def _from_elsewhere(evidence: Analysis, log: Timeline, made: Made) -> Iterator[str]:
    usual = [each.entered for restart in evidence.restarts[1:] for each in restart.restores]
    for number, worker in enumerate(log.processes):
        path = worker.source or ""
        if path.startswith("/") and f"/{made.folder}/" not in path:
            yield f"rank {worker.rank} restored {path}, which is not in the copy of the checkpoints"
        other = evidence.saves.other_at_path(path.replace(f"/{made.folder}/", "/", 1), made.step, NEVER)
        if path and other is not None:
            yield f"rank {worker.rank} restored {path}, which is of step {other}, not of step {made.step}"
        took = restore(log, evidence.saves, number, worker.took or {"at": 0}, 0)
        yield from [took.is_another] if took.is_another else []
        entered = {took.entered, *usual} if took.entered else set()
        if ("model",) in entered and any(len(parts) > 1 for parts in entered):
            yield f"rank {took.rank} or a restart of the run restored its model alone, and the other more of the state"


def tensors(run: Timeline) -> dict[int, str]:
    """Maps each step to the digest of the tensors in the last save of this step that the harness saw."""
    return {event.get("step") or 0: str(event["tensors"]) for event in run.published if event.get("tensors")}
