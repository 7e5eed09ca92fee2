"""The job does no step with fewer ranks than it needs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.job_end import too_small
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in too_small(evidence.run):
        yield breach(f"the job went on with {counted(each.size, 'rank')}; it needs at least {each.least}", each)


GUARANTEE = Guarantee(breaches, needs_steps=False)
