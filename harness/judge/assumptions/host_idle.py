"""The host has time for the job: other programs take no more of it than in the fault-free runs."""

from __future__ import annotations

from harness.judge.assumption import AGAIN, FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import OTHERS_MOST, Pace, others_share
from harness.judge.verdict import Ground, Kind

HOST_FACTOR = 1.4  # beyond the bound: extra slowdown allowed on a shared host
OTHERS_MAX = 0.15  # of all CPUs of the host: the extra share that other programs may take


def _now_and_then(evidence: Analysis, ground: Ground) -> str:
    pace, bound = ground.of, ground.bound
    if not isinstance(pace, Pace) or not (
        pace.was_slow(bound) or (pace.is_slow(bound) and pace.best <= pace.allowed(bound))
    ):
        return ""
    return "not all the time: the host may have been busy"


def _busy_host(evidence: Analysis, ground: Ground) -> str:
    slowed = isinstance(ground.of, Pace) and _explains(ground.of, ground.bound)
    return "a busy host could also explain it" if slowed else ""


def _other_programs(evidence: Analysis, ground: Ground) -> str:
    pace = ground.of
    if not isinstance(pace, Pace) or pace.others <= OTHERS_MAX or not _explains(pace, ground.bound, pace.others):
        return ""
    return f"other programs took {pace.others:.0%} more of the host's CPUs then"


def _explains(pace: Pace, bound: float, others: float = 0) -> bool:
    """The job has what others leave of the CPUs, and waits for the rank that has least of them."""
    host = max(pace.worst, HOST_FACTOR) / max(1 - others, 0.01) ** 2
    return pace.is_slow(bound) and pace.at_least <= pace.allowed(bound) * host


def _host_taken(evidence: Analysis, ground: Ground) -> str:
    others = others_share(evidence.run, evidence.run.begin, evidence.run.end)
    return f"other programs took {others:.0%} of the host's CPUs" if others > OTHERS_MOST else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.DURATION, _now_and_then, FRESH),
        Spoils(Kind.DURATION, _busy_host, FRESH),
        Spoils(Kind.DURATION, _other_programs, FRESH),
        Spoils(Kind.DURATION, _host_taken, f"{AGAIN}: {{run}}"),
    ),
    order=4,
)
