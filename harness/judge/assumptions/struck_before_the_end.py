"""A fault had struck before the run was given up."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Episode


def _given_up_before(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    early = run.outcome == "aborted" and first_strike(run.faults) == NEVER
    return "the run was aborted before any fault had struck" if early and isinstance(ground.of, Episode) else ""


ASSUMPTION = Assumption(
    spoils=(
        Spoils(
            Kind.DURATION,
            _given_up_before,
            "See why the job does not start: its output is in logs/ of the run's folder",
            alone=True,
        ),
    ),
    order=2,
)
