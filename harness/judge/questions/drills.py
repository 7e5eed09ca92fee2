"""Measures the two restarts that the harness makes after the run: the restore drill and the second restart."""

from typing import Any

from harness.judge.bounds import LastCheckpointBounds
from harness.judge.facts.after_the_run import newest_save, not_as_asked, restore_drill, second_restart
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.done_again import NO_BOUND, done_again, not_done
from harness.judge.score import Score, ScoreResult, line
from harness.units import counted


def last_checkpoint(evidence: Analysis, bounds: LastCheckpointBounds | None) -> ScoreResult:
    drill, newest = restore_drill(evidence), newest_save(evidence)
    values: dict[str, Any] = {"committed_step": newest or None, "restored_step": drill.step}
    values |= {name: drill.told.get(name) for name in ("outcome", "seconds", "gpu_seconds")}
    if bounds is None or drill.done is None:
        return ScoreResult(values, why_not=drill.silent)
    older = drill.step < newest - bounds.max_steps_behind
    if not older and any(not_as_asked(evidence, drill)):
        return ScoreResult(values)
    bound = f"≤ {counted(bounds.max_steps_behind, 'step')} behind {newest}"
    why = f"the restore drill took the checkpoint of step {drill.step}, and one of step {newest} had been committed"
    name = "last_checkpoint.max_steps_behind"
    return ScoreResult(values, [line(name, bound, f"step {drill.step}", why * older)])


def second_restart_score(evidence: Analysis, bounds: object) -> ScoreResult:
    told, again, why = second_restart(evidence).told, done_again(evidence), not_done(evidence)
    values: dict[str, Any] = {name: told.get(name) for name in ("outcome", "step", "seconds", "gpu_seconds")}
    values["steps"] = len(again.compared.step) if again else 0
    if bounds is None or why or again is None:
        return ScoreResult(values, why_not=why)
    unbound = [("losses of the second restart", NO_BOUND)] if again.unbound else []
    same = f"a second restart did {counted(len(again.compared.step), 'step')} once more"
    unseen = [("saves of the second restart", why)] if (why := again.saves_not_compared) else []
    return ScoreResult(values, summary=same, not_judged=unbound + unseen)


SCORES = (Score("last_checkpoint", 42, last_checkpoint), Score("second_restart", 43, second_restart_score))
