"""A fault-free run had each number of ranks that the world had, and a change of it changes nothing by itself."""

from __future__ import annotations

from harness.judge.assumption import FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _sizes_unknown(evidence: Analysis, ground: Ground) -> str:
    sizes = {int(epoch.size) for epoch in evidence.run.epochs if epoch.kept >= epoch.first}
    unknown = set() if isinstance(evidence.envelope, str) else sizes - evidence.envelope.sizes
    return f"no fault-free run had {min(unknown)} ranks" if unknown else ""


def _size_changes(evidence: Analysis, ground: Ground) -> str:
    return evidence.resume_alone[1]


SEE = "See what depends on the number of ranks: the global batch, the mean of losses and gradients"
ASSUMPTION = Assumption(
    spoils=(
        Spoils(Kind.BAND, _size_changes, SEE, alone=True, either_way=True),
        Spoils(Kind.BAND, _sizes_unknown, FRESH),
    ),
    order=1,
)
