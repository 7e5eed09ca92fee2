"""Diagnoses a training job from data that any cluster has: what broke first, the culprit, the reason, and what to do.

The input is a `View`: the part of a run's event log without the plan of the injected faults and without measurements by
the test harness.
"""

from __future__ import annotations

from harness.diagnosis.incident import NS, Incident
from harness.diagnosis.outages import outages
from harness.diagnosis.signs import signs
from harness.diagnosis.slowness import slowness
from harness.diagnosis.view import View

NEAR_NS = 5 * NS  # an incident that begins so soon after another one has the same cause, if it names nobody else
INCIDENTS_MAX = 1000


def explain(view: View) -> list[Incident]:
    """Returns the incidents (things that broke in a training job) in order of time, at most `INCIDENTS_MAX`."""
    found = sorted([*outages(view), *slowness(view), *signs(view)], key=lambda each: (each.begin, -each.sure))
    kept: list[Incident] = []
    for incident in found[:INCIDENTS_MAX]:
        if not any(_covers(other, incident) for other in kept):
            kept = [each for each in kept if not _covers(incident, each)] + [incident]
    return kept


def _covers(one: Incident, other: Incident) -> bool:
    """Returns True if incident `other` repeats incident `one`, or is a vaguer sign of the same failure. A vaguer sign
    is less certain, occurs at about the same time, and accuses the same suspects or no rank, node or file."""
    if (one.kind, one.who, one.decision) == (other.kind, other.who, other.decision):
        return abs(one.known - other.known) < NEAR_NS
    meets = one.begin - NEAR_NS <= other.known and other.begin <= one.known + NEAR_NS
    vague = all(suspect.rank is None and suspect.node is None and suspect.file is None for suspect in other.who)
    return meets and (vague or one.who == other.who) and one.sure > other.sure
