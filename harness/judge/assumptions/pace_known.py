"""The fault-free runs show how fast the job is."""

from __future__ import annotations

from harness.judge.assumption import FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import Degraded, Pace, Slow
from harness.judge.verdict import Ground, Kind


def _another_pace(evidence: Analysis, ground: Ground) -> str:
    slow = ground.of
    if isinstance(slow, Degraded) and slow.before is not None:
        text = f"a step took {slow.before:.2f} × the time of the fault-free runs already before {slow.fault} struck"
        return f"{text}: its usual speed is not known (the host may have been busy)"
    if isinstance(slow, Pace) and slow.slow(ground.bound) is Slow.BESIDE_BEFORE:
        return "the fault-free run was much slower than this run before its first fault"
    return ""


def _another_size(evidence: Analysis, ground: Ground) -> str:
    pace = ground.of
    slow = isinstance(pace, Pace) and pace.slow(ground.bound) is Slow.ON_THE_WHOLE and not pace.known
    return "no fault-free run had as many ranks" if slow else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.DURATION, _another_pace, FRESH, alone=True),
        Spoils(Kind.DURATION, _another_size, "Where fewer ranks may go on more slowly, write pace: off"),
    ),
    order=3,
)
