"""Each step consumes the samples that it consumes without a fault, but for what may be repeated or left out."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.agreement import others_consumed, unbound
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in others_consumed(evidence):
        text = f"{counted(each.steps, 'step')} consumed other samples than the fault-free run"
        grounds = Ground(Kind.LOSSES), Ground(Kind.ORDER)
        yield breach(f"{text}, first at step {each.first}", each, grounds=grounds)


GUARANTEE = Guarantee(breaches, rests_on=("positions",), nothing=unbound)
