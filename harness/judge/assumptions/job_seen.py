"""The harness sees the steps of the job."""

from harness.evidence.reported import NO_STEPS, blindness
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils

TELL = "Let the trainer tell its steps: docs/bring-your-own-trainer.md"


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    if why := blindness(run, evidence.fault_free):
        yield why
    elif run.outcome == "completed" and run.aborted is None and not len(run.steps):
        yield NO_STEPS


def _blind(evidence: Analysis, ground: Ground) -> str:
    return f"not judged: {why}" if (why := blindness(evidence.run, evidence.fault_free)) else ""


ASSUMPTION = Assumption(_broken, (Spoils(Kind.STEPS, _blind, TELL, alone=True),), order=0, settles=TELL)
