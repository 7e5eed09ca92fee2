"""A rehearsal of a game day ran to its end, and none before it changed what the job computes."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind

AGAIN = "Rehearse it again, to its end: {run}"


def _other_rehearsal(evidence: Analysis, ground: Ground) -> str:
    other = evidence.run.beside.other_losses
    then = "changes what the job computes from there on: rehearse it on another day, or after this one"
    return f"rehearsal {other} {then}" if other else ""


def _stopped(evidence: Analysis, ground: Ground) -> str:
    """A rehearsal that people stopped or skipped did not come to what it was meant to show."""
    cut = evidence.run.beside.cut_short
    return f"it was {cut}, so this proves nothing" if cut else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.LOSSES, _other_rehearsal, "Rehearse it alone: {run}"),
        Spoils(Kind.STEPS, _stopped, AGAIN),
        Spoils(Kind.FAULTS, _stopped, AGAIN),
    ),
    order=4,
)
