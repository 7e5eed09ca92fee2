"""Each node that the job had from start to end took part in its steps."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.job_end import unused
from harness.judge.guarantee import RUN, SECOND_RESTART, Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in unused(evidence.run):
        yield breach(f"{each.node} was allocated from start to end, but took part in no step", each)


GUARANTEE = Guarantee(breaches, holds_for=(RUN, SECOND_RESTART), needs_steps=False)
