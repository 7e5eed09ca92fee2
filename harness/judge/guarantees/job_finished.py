"""The job ends without an error, does its last planned step, and ends with the state of this step.

If a worker ends with code 0 before the job's last step, the run is inconclusive. A worker that logged an error has
failed, even if its launcher logs code 0. A run that was aborted before any fault struck is inconclusive.
"""

from harness.evidence.reported import blindness
from harness.evidence.work import done, given_up_early, reached, spoiler, waited
from harness.judge.guarantee import DRILL, RUN, Analysis, Breaches, Guarantee, after, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.timeline import Timeline


def breaches(evidence: Analysis) -> Breaches:
    run, blind = evidence.run, blindness(evidence.run, evidence.fault_free)
    if run.outcome == "failed" and (blind or "fail_fast" not in (run.plan.get("expect") or {})):
        damage = None if blind else spoiler(run)
        spoilt = f"; it restored nothing after `{damage.id}` had damaged a checkpoint" if damage else ""
        text = f"the job failed{'' if blind else f' at {done(run)}'}: {run.outcome_reason}{spoilt}"
        since = int(run.progress.end.max(initial=run.begin))
        yield breach(text, grounds=[Ground(Kind.NODES), *after(waited(run, since))])
    elif run.outcome == "aborted" and not blind and not given_up_early(run):
        text = f"{run.outcome_reason or 'the run was aborted'}; {reached(run)}"
        yield breach(text, grounds=[Ground(Kind.DURATION), Ground(Kind.NODES)])
    elif run.outcome == "completed" and not blind and run.aborted is None and len(run.steps):
        yield from _completed(run)


def _completed(run: Timeline) -> Breaches:
    kept = int(run.steps.step[run.steps.survives & run.steps.complete].max(initial=0))  # step of the final state
    if not run.finished:
        since = int(run.progress.end.max(initial=run.begin))
        text = f"the job ended without an error, but only reached {done(run)}"
        yield breach(text, grounds=[Ground(Kind.ABSENCE, since=since), Ground(Kind.REACHED), Ground(Kind.NODES)])
    elif kept < (run.last_told_step or 0):
        yield breach(f"the job reached {done(run)}, but went back afterwards: it ended with the state of step {kept}")


CAUSES = ("saves.one_writer", "restart.progress")
GUARANTEE = Guarantee(breaches, explained_by=CAUSES, holds_for=(RUN, DRILL), needs_steps=False)
