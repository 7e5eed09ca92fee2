"""The fault-free runs show how fast the job is."""

from __future__ import annotations

from harness.judge.assumption import FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import Degraded, Pace
from harness.judge.verdict import Ground, Kind


def _slow_before(evidence: Analysis, ground: Ground) -> str:
    slow = ground.of
    if not isinstance(slow, Degraded) or slow.before is None:
        return ""
    text = f"a step took {slow.before:.2f} × the time of the fault-free runs already before {slow.fault} struck"
    return f"{text}: its usual speed is not known (the host may have been busy)"


def _of_another_size(evidence: Analysis, ground: Ground) -> str:
    pace = ground.of
    slow = isinstance(pace, Pace) and pace.is_slow(ground.bound) and not pace.known
    return "no fault-free run had as many ranks" if slow else ""


def _faster_before(evidence: Analysis, ground: Ground) -> str:
    faster = isinstance(ground.of, Pace) and ground.of.was_faster(ground.bound)
    return "the fault-free run was much slower than this run before its first fault" if faster else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.DURATION, _slow_before, FRESH, alone=True),
        Spoils(Kind.DURATION, _of_another_size, "Where fewer ranks may go on more slowly, write pace: off"),
        Spoils(Kind.DURATION, _faster_before, FRESH, alone=True),
    ),
    order=3,
)
