"""The times that processes tell can be: they contradict neither each other nor what the harness saw."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Iterator[str]:
    return (f"{each.words}: {UNTRUE}" for each in evidence.impossible_times if not each.seen)


ASSUMPTION = Assumption(_broken, family="steps")
