"""No job goes back to an earlier step by its own decision without saying before what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restored_states import no_restart, went_back
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in went_back(evidence):
        why = "its steps do not show what it said" if each.contradicted else "nobody told why"
        yield breach(f"the job went back from step {each.last} to step {each.to} by its own decision, and {why}", each)


GUARANTEE = Guarantee(breaches, nothing=no_restart)
