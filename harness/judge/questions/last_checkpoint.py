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

from harness.judge.facts import by_time, comparable
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.evidence import DrillLog
from harness.judge.questions.saves import is_none
from harness.judge.score import Bounds, Expectation, Score, ScoreResult, Verdict
from harness.judge.verdict import Claim, Code, Doubt, Ground, Kind, failed, unknown
from harness.timeline.lineage import NEVER
from harness.timeline.saves import FAILED
from harness.timeline.story import CLEAN_CODES
from harness.timeline.timeline import Timeline
from harness.units import counted

ITEM = "last checkpoint"
NAME = "last_checkpoint.max_steps_behind"
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
        committed = {max(save.step, 0) for save in evidence.saves.good}
        newest = max(committed, default=0)
        told = run.drill or {}
        restored = told.get("restored_step")
        values: dict[str, Any] = {"committed_step": newest or None, "restored_step": restored}
        values["outcome"] = told.get("outcome")
        if bounds is None:
            return ScoreResult(values)
        bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
        claim = _left_behind(evidence)
        if claim is not None:
            return ScoreResult(values, [_line(bound, f"step {newest}" if newest else "—", claim)])
        if run.drill is None:
            return ScoreResult(values, not_judged=[(ITEM, "no restore drill was run")])
        claim = _drilled(run, evidence.drill, committed, bounds.max_steps_behind)
        observed = f"step {restored}" if isinstance(restored, int) else str(told.get("outcome") or "no end")
        return ScoreResult(values, [_line(bound, observed, claim)])


def _line(bound: str, observed: str, claim: Claim | None) -> Expectation:
    if claim is None:
        return Expectation(NAME, bound, observed, Verdict.PASS)
    verdict = _VERDICTS[claim.good]
    why, rests_on = claim.words, claim.rests_on
    return Expectation(NAME, bound, observed, verdict, why, code=claim.code, doubt=claim.doubt, rests_on=rests_on)


def _drilled(run: Timeline, drill: DrillLog | None, committed: set[int], behind: int) -> Claim | None:
    """What the harness saw, unless the drill's own log says otherwise. `None`: the checkpoint can be loaded."""
    told, newest = run.drill or {}, max(committed, default=0)
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
    if {found for _, found in drill.restored} != {step}:
        text = f"the restore drill's workers do not say that they restored step {step}"
        return unknown(Code.DRILL_UNCONFIRMED, text)
    if step < newest - behind:
        text = f"only the checkpoint of step {step} could be loaded, though one of step {newest} had been committed"
        return failed(Code.DRILL_OLDER, text)
    ranks = drill.world_size if drill.world_size > 0 else run.planned_size.world_size
    if ranks is None:
        return unknown(Code.DRILL_UNKNOWN_RANKS, "the number of ranks in the restore drill is not known")
    told_by = len({rank for rank, _ in drill.restored})
    if told_by < ranks:
        text = f"only {told_by} of the restore drill's {ranks} ranks say that they restored"
        return unknown(Code.DRILL_FEW_RANKS, text)
    if step not in committed:
        text = f"the restore drill loaded a checkpoint of step {step}, which the job did not report as committed"
        return unknown(Code.DRILL_NOT_COMMITTED, text)
    return None


def _left_behind(evidence: Analysis) -> Claim | None:
    """What is wrong with the last save of a job that did all its steps, by its log and by the store: it failed, or is
    none, or was never made, or a fault damaged it."""
    run, saves = evidence.run, evidence.saves
    last = saves.good[-1].ended if saves.good else None
    if not run.finished or run.outcome != "completed" or (run.torn and last is None):
        return None
    absent = Ground(Kind.ABSENCE)
    after = [save for save in saves.all if save.last_at > (run.begin if last is None else last)]
    undisturbed = [save for save in after if _in_peace(save.last_at, evidence.disturbed)]
    none = [saves.none[save] for save in undisturbed if save in saves.none]
    if none:
        return is_none(none[-1], Code.SAVE_LAST_IS_NONE, f"the last checkpoint, of step {none[-1].save.step},")
    if tried := [save for save in undisturbed if save.how == FAILED]:
        return failed(Code.SAVE_LAST_FAILED, f"the last checkpoint, of step {tried[-1].step}, failed", absent)
    begun = [save for save in saves.all if save.begun is not None]
    if begun and not any(save.how and save.step >= begun[-1].step for save in saves.all):
        ended_well = run.processes[begun[-1].process].exit_code in CLEAN_CODES
        if ended_well and _in_peace(begun[-1].at, evidence.disturbed):
            text = f"the last checkpoint, of step {begun[-1].step}, was started but never committed"
            return failed(Code.SAVE_LAST_NEVER_ENDED, text, absent)
    for fault in run.faults:
        if fault.damages and fault.injected is not None and last is not None and last <= fault.injected:
            text = f"{fault.id} damaged the last checkpoint, and no other was committed afterwards"
            return unknown(Code.SAVE_LAST_DAMAGED, text)
    newest, wanted = max(saves.steps, default=0), _wanted(evidence)
    if newest < wanted and _in_peace(int(run.progress.end[-1]), evidence.disturbed):
        text = f"the job ended at step {run.reached_step}, and its last checkpoint is of step {newest}"
        return failed(Code.SAVE_LAST_MISSING, f"{text}: without a fault it is of step {wanted} or later", absent)
    return None


def _wanted(evidence: Analysis) -> int:
    """Of which step the last checkpoint is at least: as far before the last step as in the fault-free run; where that
    made none of its own at its end, up to an interval further."""
    run, usual, fault_free = evidence.run, evidence.fault_free_saves, evidence.fault_free
    cut = any(run.processes[row].cut or run.processes[row].torn for row in run.epochs[-1].processes)
    if usual is None or fault_free is None or cut or comparable.flaw(run, fault_free) or not usual.whole:
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
