"""Last checkpoint: the job leaves one of its last step behind. It can be loaded, as a restore drill shows before the
nodes are released.

The harness starts the job's command once more on a copy of the checkpoints, waits for `restored`, and ends it. It tells
`drill.started` {step} and `drill.finished` {outcome, step, restored_step} in its own log; the events of the drill's
workers lie in `RUN/drill/events/` and must say the same.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from harness.judge.facts import by_time
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.drill import FOLDER, DrillLog
from harness.judge.facts.saves import Saves
from harness.judge.score import Bounds, Expectation, Score, ScoreResult, Verdict
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, failed, unknown
from harness.timeline.lineage import NEVER
from harness.timeline.saves import FAILED
from harness.timeline.story import CLEAN_CODES
from harness.timeline.timeline import Timeline
from harness.units import counted

ITEM = "last checkpoint"
NAME = "last_checkpoint.max_steps_behind"
CHECKPOINTS = "checkpoints"  # the folder, where the plan names none
_VERDICTS = {True: Verdict.PASS, False: Verdict.FAIL, None: Verdict.INCONCLUSIVE}
_BAD: dict[str, tuple[Callable[[str, str], Claim], Code, str]] = {
    "scratch": (failed, Code.DRILL_FROM_SCRATCH, "the restore drill started from scratch"),
    "failed": (failed, Code.DRILL_FAILED, "the restore drill ended before it had restored anything"),
    "timeout": (unknown, Code.DRILL_TIMEOUT, "the restore drill restored nothing in time"),
    "error": (unknown, Code.DRILL_ERROR, "the restore drill could not be run"),
}


class LastCheckpointBounds(Bounds):
    """`max_steps_behind`: so many steps may lie between the newest committed checkpoint and the one that loads."""

    max_steps_behind: int = Field(0, ge=0)


class LastCheckpoint(Score):
    name = "last_checkpoint"
    order = 42
    Bounds = LastCheckpointBounds
    by_default = ITEM

    def score(self, evidence: Analysis, bounds: LastCheckpointBounds | None) -> ScoreResult:
        run = evidence.run
        newest = max((save.step for save in evidence.saves.good if save.holds != ("model",)), default=0)
        told = run.drill or {}
        restored = told.get("restored_step")
        values: dict[str, Any] = {"committed_step": newest or None, "restored_step": restored}
        values |= {name: told.get(name) for name in ("outcome", "seconds", "gpu_seconds")}
        if bounds is None:
            return ScoreResult(values)
        bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
        why = _nothing_learned(run)
        if why:
            found = [_left_behind(evidence), _damaged(evidence)]
        else:
            loaded = _drilled(run, evidence.saves, evidence.drill, newest, bounds.max_steps_behind)
            found = [loaded, _left_behind(evidence)]
        claim = min((claim for claim in found if claim), key=lambda claim: claim.good is None, default=None)
        if why and claim is None:
            return ScoreResult(values, not_judged=[(ITEM, why)])
        observed = f"step {restored}" if isinstance(restored, int) else str(told.get("outcome") or "no end")
        observed = "—" if why else observed
        return ScoreResult(values, [_line(bound, observed, claim)])


def _line(bound: str, observed: str, claim: Claim | None) -> Expectation:
    if claim is None:
        return Expectation(NAME, bound, observed, Verdict.PASS)
    verdict = _VERDICTS[claim.good]
    why, rests_on = claim.words, claim.rests_on
    return Expectation(NAME, bound, observed, verdict, why, code=claim.code, doubt=claim.doubt, rests_on=rests_on)


def _nothing_learned(run: Timeline) -> str:
    """Why no drill says anything; an empty text: one does."""
    told = run.drill
    if told is not None:
        return str(told.get("reason") or "the drill tells nothing") if told.get("outcome") == "untold" else ""
    off = (run.plan.get("workload") or {}).get("restore_drill") is False
    none = "restore_drill is off" if off else "no restore drill was run"
    return "" if run.drills else none


def _drilled(run: Timeline, saves: Saves, drill: DrillLog | None, newest: int, behind: int) -> Claim | None:
    """What the harness saw, unless the drill's own log says otherwise. `None`: the checkpoint can be loaded."""
    told = run.drill or {}
    outcome, step = told.get("outcome"), told.get("restored_step")
    if outcome in _BAD:
        claim, code, text = _BAD[outcome]
        if not newest and outcome != "error":
            return unknown(code, f"{text}, and no checkpoint had been committed", Doubt.NOTHING_COMMITTED)
        detail = f": {told['reason']}" if told.get("reason") else ""
        return claim(
            code, f"{text}{detail}, though a checkpoint of step {newest} had been committed" if newest else text
        )
    if outcome != "restored" or isinstance(step, bool) or not isinstance(step, int):
        return unknown(Code.DRILL_NO_END, "the restore drill has no end in the log")
    if drill is None or drill.problem:
        why = f": {drill.problem}" if drill else ""
        return unknown(Code.DRILL_NO_LOG, f"the restore drill left no log that can be read{why}")
    if not drill.restored or not all(each.is_of(step, run.stride) for each in drill.restored):
        text = f"the restore drill's workers do not say that they restored step {step}"
        return unknown(Code.DRILL_UNCONFIRMED, text)
    if step < newest - behind:
        text = f"only the checkpoint of step {step} could be loaded, though one of step {newest} had been committed"
        return failed(Code.DRILL_OLDER, text)
    return _by_all_ranks(run, drill) or _from_the_copy(run, saves, drill, step)


def _by_all_ranks(run: Timeline, drill: DrillLog) -> Claim | None:
    """Each rank that told of itself in the run must have restored, in a world as large as the planned one."""
    planned = run.planned_size.world_size
    ranks = planned or drill.world_size
    if ranks <= 0:
        return unknown(Code.DRILL_UNKNOWN_RANKS, "the number of ranks in the restore drill is not known")
    speakers = {process.rank for process in run.processes if process.rank < ranks} or set(range(ranks))
    told_by = len(speakers & {each.rank for each in drill.restored})
    if told_by < len(speakers):
        text = f"only {told_by} of the restore drill's {len(speakers)} ranks say that they restored"
        return unknown(Code.DRILL_FEW_RANKS, text)
    if drill.world_size > 0 and drill.world_size != ranks:
        text = f"the restore drill's workers were a world of {drill.world_size}, not of {ranks} ranks"
        return unknown(Code.DRILL_FEW_RANKS, text)
    return None


def _from_the_copy(run: Timeline, saves: Saves, drill: DrillLog, step: int) -> Claim | None:
    """What was restored must be what the job had committed, as its copy."""
    if step not in {max(save.step, 0) for save in saves.whole}:
        text = f"the restore drill loaded a checkpoint of step {step}, which the job did not report as committed"
        return unknown(Code.DRILL_NOT_COMMITTED, text)
    copies = _copies(run, saves)
    for each in drill.restored:
        path = each.source
        if path.startswith("/") and not any(place in path for place in copies):
            text = f"the restore drill's rank {each.rank} restored {path}, which is not in the copy of the checkpoints"
            return unknown(Code.DRILL_ELSEWHERE, text)
        other = saves.other_at_path(path.replace(f"/{FOLDER}/", "/", 1), step, NEVER)
        if other is not None:
            text = f"the restore drill's rank {each.rank} restored {path}, which is of step {other}, not of step {step}"
            return unknown(Code.DRILL_ELSEWHERE, text)
    return None


def _copies(run: Timeline, saves: Saves) -> set[str]:
    """Parts of paths, one of which that of each copy holds: the run's own folder, as the job called it, and the drill's
    within it."""
    folder = str(((run.plan.get("workload") or {}).get("checkpoint") or {}).get("path") or CHECKPOINTS)
    within = f"/{folder.replace('{checkpoints}', CHECKPOINTS).removeprefix('{run_dir}/').strip('/')}/"
    told = {save.path.partition(within)[0] for save in saves.all if save.path.startswith("/") and within in save.path}
    return {f"/{place.rpartition('/')[2]}/{FOLDER}/" for place in told} or {f"/{FOLDER}/"}


def _left_behind(evidence: Analysis) -> Claim | None:
    """What is wrong with the last save of a job that did all its steps, by its log and by the store: it failed, or is
    none, or was never made."""
    run, saves = evidence.run, evidence.saves
    last = saves.good[-1].ended if saves.good else None
    if not run.finished or run.outcome != "completed" or (run.torn and last is None):
        return None
    absent = Ground(Kind.ABSENCE)
    after = [save for save in saves.all if save.last_at > (run.begin if last is None else last)]
    undisturbed = [save for save in after if _in_peace(save.last_at, evidence.disturbed)]
    none = [saves.none[save] for save in undisturbed if save in saves.none]
    if none:
        text = f"the last checkpoint, of step {none[-1].save.step}, is none: {none[-1].why}"
        return (failed if none[-1].proved else unknown)(Code.SAVE_LAST_IS_NONE, text)
    if tried := [save for save in undisturbed if save.how == FAILED]:
        return failed(Code.SAVE_LAST_FAILED, f"the last checkpoint, of step {tried[-1].step}, failed", absent)
    begun = [save for save in saves.all if save.begun is not None]
    if begun and not any(save.how and save.step >= begun[-1].step for save in saves.all):
        ended_well = run.processes[begun[-1].process].exit_code in CLEAN_CODES
        if ended_well and _in_peace(begun[-1].at, evidence.disturbed):
            text = f"the last checkpoint, of step {begun[-1].step}, was started but never committed"
            return failed(Code.SAVE_LAST_NEVER_ENDED, text, absent)
    newest, wanted = max(saves.steps, default=0), _wanted(evidence)
    if newest < wanted and _in_peace(int(run.progress.end[-1]), evidence.disturbed):
        text = f"the job ended at step {run.reached_step}, and its last checkpoint is of step {newest}"
        return failed(Code.SAVE_LAST_MISSING, f"{text}: without a fault it is of step {wanted} or later", absent)
    return None


def _damaged(evidence: Analysis) -> Claim | None:
    """Without a drill nothing shows whether it can still be loaded."""
    run, saves = evidence.run, evidence.saves
    last = saves.good[-1].ended if saves.good else None
    if not run.finished or run.outcome != "completed" or last is None:
        return None
    for fault in run.faults:
        if fault.damages and fault.injected is not None and last <= fault.injected:
            text = f"{fault.id} damaged the last checkpoint, and no other was committed afterwards"
            return unknown(Code.SAVE_LAST_DAMAGED, text)
    return None


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


def _in_peace(at: int, disturbed: Sequence[by_time.Window]) -> bool:
    place = bisect.bisect_right(disturbed, (at, NEVER))
    return not place or disturbed[place - 1][1] < at


SCORES = (LastCheckpoint(),)
