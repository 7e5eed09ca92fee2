"""Last checkpoint: what the job leaves behind can be loaded, shown by a restore drill before its nodes are released.

The harness starts the job's command once more on a copy of the checkpoints, waits for `restored`, and ends it. It tells
`drill.started` {step} and `drill.finished` {outcome, step, restored_step} in its own log; the events of the drill's
workers lie in `RUN/drill/events/` and must say the same.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from pydantic import Field

from harness.judge.facts import by_time
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.drill import FOLDER, DrillLog
from harness.judge.facts.saves import Saves
from harness.judge.score import Bounds, Expectation, Score, ScoreResult, Verdict
from harness.judge.verdict import Claim, Code, Doubt, failed, unknown
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
        newest = max((save.step for save in evidence.saves.whole if save.holds != ("model",)), default=0)
        told = run.drill or {}
        restored = told.get("restored_step")
        values: dict[str, Any] = {"committed_step": newest or None, "restored_step": restored}
        values |= {name: told.get(name) for name in ("outcome", "seconds", "gpu_seconds")}
        if bounds is None:
            return ScoreResult(values)
        bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
        if why := _nothing_learned(run):
            claim = _from_the_log(run, evidence.saves)
            if claim is None:
                return ScoreResult(values, not_judged=[(ITEM, why)])
            return ScoreResult(values, [_line(bound, "—", claim)])
        claim = _drilled(run, evidence.saves, evidence.drill, newest, bounds.max_steps_behind)
        observed = f"step {restored}" if isinstance(restored, int) else str(told.get("outcome") or "no end")
        return ScoreResult(values, [_line(bound, observed, claim)])


def _line(bound: str, observed: str, claim: Claim | None) -> Expectation:
    if claim is None:
        return Expectation(NAME, bound, observed, Verdict.PASS)
    verdict = _VERDICTS[claim.good]
    return Expectation(NAME, bound, observed, verdict, claim.words, code=claim.code, doubt=claim.doubt)


def _nothing_learned(run: Timeline) -> str:
    """Why no drill says anything; an empty text: one does."""
    told = run.drill
    if told is not None:
        return str(told.get("reason") or "the drill tells nothing") if told.get("outcome") == "untold" else ""
    off = (run.plan.get("workload") or {}).get("restore_drill") is False
    return "restore_drill is off" if off else "no restore drill was run"


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


def _from_the_log(run: Timeline, saves: Saves) -> Claim | None:
    """Without a drill: the last save failed, or a fault damaged it, and no other came after."""
    last = saves.whole[-1].ended if saves.whole else None
    if not run.finished or run.outcome != "completed" or run.dropped or (run.torn and last is None):
        return None
    disturbed = by_time.disturbed(run)
    ended = sorted((save.ended, save.step) for save in saves.all if save.how == FAILED and save.ended is not None)
    after = [(at, step) for at, step in ended if at > (run.begin if last is None else last)]
    if any(_in_peace(at, disturbed) for at, _ in after):
        return failed(Code.SAVE_LAST_FAILED, f"the last checkpoint, of step {after[-1][1]}, failed")
    begun = [save for save in saves.all if save.begun is not None]
    if begun and not any(save.how and save.step >= begun[-1].step for save in saves.all):
        ended_well = run.processes[begun[-1].process].exit_code in CLEAN_CODES
        if ended_well and _in_peace(begun[-1].at, disturbed):
            text = f"the last checkpoint, of step {begun[-1].step}, was started but never committed"
            return failed(Code.SAVE_LAST_NEVER_ENDED, text)
    for fault in run.faults:
        if fault.damages and fault.injected is not None and last is not None and last <= fault.injected:
            text = f"{fault.id} damaged the last checkpoint, and no other was committed afterwards"
            return unknown(Code.SAVE_LAST_DAMAGED, text)
    return None


def _in_peace(at: int, disturbed: list[by_time.Window]) -> bool:
    place = bisect.bisect_right(disturbed, (at, NEVER))
    return not place or disturbed[place - 1][1] < at


SCORES = (LastCheckpoint(),)
