"""Last checkpoint: what the job leaves behind can be loaded, shown by a restore drill before its nodes are released.

The harness starts the job's command once more on a copy of the checkpoints, waits for `restored`, and ends it. It tells
`drill.started` {step} and `drill.finished` {outcome, step, restored_step} in its own log; the events of the drill's
workers lie in `RUN/drill/events/` and must say the same.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness.judge.codes import Code, Doubt
from harness.judge.facts import undisturbed
from harness.judge.facts.drill import DrillLog
from harness.judge.score import Bounds, Evidence, Expectation, Finding, Score, ScoreResult, Verdict
from harness.timeline.story import CLEAN_CODES
from harness.timeline.timeline import Timeline
from harness.units import counted

ITEM = "last checkpoint"
NAME = "last_checkpoint.max_steps_behind"
_BAD = {
    "scratch": Finding(Verdict.FAIL, "the restore drill started from scratch", Code.DRILL_FROM_SCRATCH),
    "failed": Finding(Verdict.FAIL, "the restore drill ended before it had restored anything", Code.DRILL_FAILED),
    "timeout": Finding(Verdict.INCONCLUSIVE, "the restore drill restored nothing in time", Code.DRILL_TIMEOUT),
    "error": Finding(Verdict.INCONCLUSIVE, "the restore drill could not be run", Code.DRILL_ERROR),
}


class LastCheckpointBounds(Bounds):
    """`max_steps_behind`: so many steps may lie between the newest committed checkpoint and the one that loads."""

    max_steps_behind: int = Field(0, ge=0)


class LastCheckpoint(Score):
    name = "last_checkpoint"
    order = 42
    Bounds = LastCheckpointBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: LastCheckpointBounds | None) -> ScoreResult:
        run = evidence.run
        committed = {_step(event) for event in run.checkpoints if _is(event, "committed")}
        newest = max(committed, default=0)
        told = run.drill or {}
        restored = told.get("restored_step")
        values: dict[str, Any] = {"committed_step": newest or None, "restored_step": restored}
        values["outcome"] = told.get("outcome")
        if bounds is None:
            return ScoreResult(values)
        bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
        if run.drill is None:
            finding = _from_the_log(run)
            if finding is None:
                return ScoreResult(values, not_judged=[(ITEM, "no restore drill was run")])
            return ScoreResult(values, [_line(bound, "—", finding)])
        finding = _drilled(run, evidence.drill, committed, bounds.max_steps_behind)
        observed = f"step {restored}" if isinstance(restored, int) else str(told.get("outcome") or "no end")
        return ScoreResult(values, [_line(bound, observed, finding)])


def _line(bound: str, observed: str, finding: Finding) -> Expectation:
    return Expectation(NAME, bound, observed, *finding[:2], code=finding.code, doubt=finding.doubt)


def _drilled(run: Timeline, drill: DrillLog | None, committed: set[int], behind: int) -> Finding:
    """What the harness saw, unless the drill's own log says otherwise."""
    told, newest = run.drill or {}, max(committed, default=0)
    outcome, step = told.get("outcome"), told.get("restored_step")
    detail = f": {told['reason']}" if told.get("reason") else ""
    if outcome in _BAD:
        verdict, text, code, _ = _BAD[outcome]
        if outcome != "error" and not newest:
            return Finding(
                Verdict.INCONCLUSIVE, f"{text}, and no checkpoint had been committed", code, Doubt.NOTHING_COMMITTED
            )
        said = f"{text}{detail}, though a checkpoint of step {newest} had been committed" * bool(newest) or text
        return Finding(verdict, said, code)
    if outcome != "restored" or isinstance(step, bool) or not isinstance(step, int):
        return Finding(Verdict.INCONCLUSIVE, "the restore drill has no end in the log", Code.DRILL_NO_END)
    if drill is None or drill.problem:
        return Finding(
            Verdict.INCONCLUSIVE,
            f"the restore drill left no log that can be read{': ' * bool(drill)}" + (drill.problem if drill else ""),
            Code.DRILL_NO_LOG,
        )
    if not drill.restored or {found for _, found in drill.restored} != {step}:
        return Finding(
            Verdict.INCONCLUSIVE,
            f"the restore drill's workers do not say that they restored step {step}",
            Code.DRILL_UNCONFIRMED,
        )
    if step < newest - behind:
        text = f"only the checkpoint of step {step} could be loaded"
        return Finding(Verdict.FAIL, f"{text}, though one of step {newest} had been committed", Code.DRILL_OLDER)
    ranks = drill.world_size if drill.world_size > 0 else run.planned_size.world_size
    if ranks is None:
        return Finding(
            Verdict.INCONCLUSIVE, "the number of ranks in the restore drill is not known", Code.DRILL_UNKNOWN_RANKS
        )
    if len({rank for rank, _ in drill.restored}) < ranks:
        told_by = len({rank for rank, _ in drill.restored})
        return Finding(
            Verdict.INCONCLUSIVE,
            f"only {told_by} of the restore drill's {ranks} ranks say that they restored",
            Code.DRILL_FEW_RANKS,
        )
    if step not in committed:
        text = f"the restore drill loaded a checkpoint of step {step}"
        return Finding(
            Verdict.INCONCLUSIVE, f"{text}, which the job did not report as committed", Code.DRILL_NOT_COMMITTED
        )
    return Finding(Verdict.PASS, "", "")


def _from_the_log(run: Timeline) -> Finding | None:
    """Without a drill: the last save failed, or a fault damaged it, and no other came after."""
    saves = [event for event in run.checkpoints if not _is(event, "started")]
    commits = [event["at"] for event in saves if _is(event, "committed")]
    last = max(commits, default=None)
    if not run.finished or run.outcome != "completed" or run.dropped or (run.torn and last is None):
        return None
    after = [event for event in saves if _is(event, "failed") and event["at"] > (run.begin if last is None else last)]
    disturbed = undisturbed.windows(run)
    if any(not any(begin <= event["at"] <= end for begin, end in disturbed) for event in after):
        return Finding(Verdict.FAIL, f"the last checkpoint, of step {_step(after[-1])}, failed", Code.SAVE_LAST_FAILED)
    begun = _never_ended(run)
    if begun is not None:
        return Finding(
            Verdict.FAIL,
            f"the last checkpoint, of step {begun}, was started but never committed",
            Code.SAVE_LAST_NEVER_ENDED,
        )
    spoilt = [fault for fault in run.faults if fault.damages and fault.injected is not None]
    for fault in spoilt:
        if last is not None and last <= (fault.injected or 0):
            return Finding(
                Verdict.INCONCLUSIVE,
                f"{fault.id} damaged the last checkpoint, and no other was committed afterwards",
                Code.SAVE_LAST_DAMAGED,
            )
    return None


def _never_ended(run: Timeline) -> int | None:
    """The step of the very last save if it was begun in peace by a worker that ended well, and is not told of again."""
    begun = [event for event in run.checkpoints if _is(event, "started")]
    if not begun:
        return None
    last, step = begun[-1], _step(begun[-1])
    over = any(_step(event) >= step for event in run.checkpoints if not _is(event, "started"))
    ended_well = run.processes[last["process"]].exit_code in CLEAN_CODES
    disturbed = any(begin <= last["at"] <= end for begin, end in undisturbed.windows(run))
    return step if ended_well and not over and not disturbed else None


def _is(event: Any, what: str) -> bool:
    return bool(event["event"] == f"checkpoint.{what}")


def _step(event: Any) -> int:
    step = event.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else 0


SCORES = (LastCheckpoint(),)
