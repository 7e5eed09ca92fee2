"""The job does no step beyond those that were planned."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.steps_done import beyond_the_plan
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in beyond_the_plan(evidence):
        if each.as_fault_free:
            text = f"the job went on to step {each.last}; its fault-free run ended after step {each.planned}"
        else:
            were = "was" if each.planned == 1 else "were"
            text = f"step {each.last} was done, but only {counted(each.planned, 'step')} {were} planned"
        yield breach(text, each)


GUARANTEE = Guarantee(breaches)
