"""A job that starts again from its first step, though a save was due, says whether it had one."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.reported import from_scratch


def _broken(evidence: Analysis) -> Iterator[str]:
    if text := from_scratch(evidence.run):
        yield text


ASSUMPTION = Assumption(_broken, holds_for=("run",))
