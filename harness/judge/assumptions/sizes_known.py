"""A fault-free run had each number of ranks that the world had."""

from __future__ import annotations

from harness.judge.assumption import FRESH, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _sizes_unknown(evidence: Analysis, ground: Ground) -> str:
    band, counts = evidence.envelope, [epoch for epoch in evidence.run.epochs if epoch.kept >= epoch.first]
    unknown = {int(epoch.size) for epoch in counts} - (frozenset() if isinstance(band, str) else band.sizes)
    return f"no fault-free run had {min(unknown)} ranks" if unknown else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.BAND, _sizes_unknown, FRESH),),
    order=3,
)
