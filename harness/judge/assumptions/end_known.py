"""The log shows how the run ended. Nobody interrupted the run, and the harness cleaned up completely at the end."""

from harness.evidence.reported import blindness
from harness.evidence.work import done
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.judge.verdict import Figure
from harness.units import format_duration


def _broken(evidence: Analysis) -> Reasons:
    run, reason = evidence.run, evidence.run.outcome_reason
    blind = blindness(run, evidence.fault_free)
    if run.outcome is None:
        yield "the harness's log has no end: the harness was killed, or its log was cut"
    elif run.outcome == "interrupted" and run.beside.cut_short:
        yield f"it was {run.beside.cut_short}: {reason or 'no reason is given'}"
    elif run.outcome == "interrupted":
        at = "" if blind else f" at {done(run)}"
        yield f"the run was interrupted{at}: {reason or 'stopped by the user'}"
    elif run.outcome == "completed" and run.aborted is not None and not blind:
        yield "the harness gave the job up, and yet its log says that the job was completed"
    elif run.outcome not in ("completed", "failed") and not (run.outcome == "aborted" and not blind):
        yield f"the run ended as {run.outcome}: {reason}"
    yield from (f"the run left something behind: {each}" for each in run.not_undone)


def _cut_short(evidence: Analysis, ground: Ground) -> str:
    if not isinstance(ground.of, Figure) or ground.of.is_over or ground.of.value > ground.bound:
        return ""
    taken = format_duration(round(ground.of.value))
    return f"the run ended {taken} into the recovery" if evidence.run.outcome in (None, "interrupted") else ""


SETTLES = "Let it run to its end, or give it longer: abort: {wall_clock: …}"
ASSUMPTION = Assumption(_broken, (Spoils(Kind.DURATION, _cut_short, SETTLES, alone=True),), holds_for=("run",))
