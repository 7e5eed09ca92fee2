"""The harness did not abort the run before a fault had struck."""

from harness.evidence.reported import blindness
from harness.evidence.work import given_up_early, reached
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Episode

LOGS = "See why the job does not start: its output is in logs/ of the run's folder"


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    if given_up_early(run) and not blindness(run, evidence.fault_free):
        yield f"{run.outcome_reason or 'the run was aborted'} before any fault had struck; {reached(run)}"


def _given_up_before(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    early = run.outcome == "aborted" and first_strike(run.faults) == NEVER
    return "the run was aborted before any fault had struck" if early and isinstance(ground.of, Episode) else ""


SPOILS = Spoils(Kind.DURATION, _given_up_before, LOGS, alone=True)
ASSUMPTION = Assumption(_broken, (SPOILS,), order=2, settles=LOGS)
