"""Each step is done while the job has the node that did it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.judge.verdict import UNTRUE


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in evidence.impossible_times:
        if each.seen:
            yield breach(f"{each.words}: {UNTRUE}", each)


GUARANTEE = Guarantee(breaches)
