"""The trainer tells what it declared to tell, and of a start from the first step whether it had a save."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts import reported
from harness.judge.facts.analysis import Analysis


def _broken(evidence: Analysis) -> Iterator[str]:
    missing = [f"{reported.ITEMS[kind]}: {why}" for kind, why in reported.missing(evidence)]
    if missing:
        yield f"evidence is missing: {'; '.join(missing)}"
    if text := reported.from_scratch(evidence.run):
        yield text


ASSUMPTION = Assumption(_broken, holds_for=("run",))
