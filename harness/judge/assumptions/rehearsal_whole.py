"""Nobody stops the rehearsal (a fault test) or its faults early, and no earlier rehearsal changes the job's losses."""

from harness.evidence.faults import stopped, struck
from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Reasons, Spoils
from harness.units import format_duration

AGAIN = "Rehearse it again, to its end: {run}"


def _broken(evidence: Analysis) -> Reasons:
    for fault in struck(evidence):
        if (after := stopped(evidence.work, fault)) is not None:
            planned = f"; its planned duration is {fault.lasts}" if fault.lasts else ", before its effect was measured"
            yield f"fault {fault.id} was stopped after {format_duration(after)}{planned}"


def _other_rehearsal(evidence: Analysis, ground: Ground) -> str:
    other = evidence.run.beside.other_losses
    then = "changes what the job computes from there on: rehearse it on another day, or after this one"
    return f"rehearsal {other} {then}" if other else ""


def _stopped(evidence: Analysis, ground: Ground) -> str:
    cut = evidence.run.beside.cut_short
    return f"it was {cut}, so this proves nothing" if cut else ""


ASSUMPTION = Assumption(
    _broken,
    spoils=(
        Spoils(Kind.LOSSES, _other_rehearsal, "Rehearse it alone: {run}"),
        Spoils(Kind.STEPS, _stopped, AGAIN),
        Spoils(Kind.FAULTS, _stopped, AGAIN),
    ),
    holds_for=("run",),
    order=4,
    family="fault",
)
