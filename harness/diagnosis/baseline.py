"""Diagnoses a job from what any cluster has: the first thing that broke, who, why, and what to do. Pure.

Its input is a `View`, which holds neither the plan nor anything that only the harness knows.
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
    """Returns what broke, in order of time: at most `INCIDENTS_MAX` incidents, or none."""
    found = sorted([*outages(view), *slowness(view), *signs(view)], key=lambda each: (each.begin, -each.sure))
    kept: list[Incident] = []
    for incident in found[:INCIDENTS_MAX]:
        if not any(_covers(other, incident) for other in kept):
            kept = [each for each in kept if not _covers(incident, each)] + [incident]
    return kept


def _covers(one: Incident, other: Incident) -> bool:
    """Returns True if one incident makes another superfluous: the same one again or, at the same time, a vaguer or less
    sure one."""
    if (one.kind, one.who, one.decision) == (other.kind, other.who, other.decision):
        return abs(one.known - other.known) < NEAR_NS
    meets = one.begin - NEAR_NS <= other.known and other.begin <= one.known + NEAR_NS
    vague = all(suspect.rank is None and suspect.node is None and suspect.file is None for suspect in other.who)
    return meets and (vague or one.who == other.who) and one.sure > other.sure
