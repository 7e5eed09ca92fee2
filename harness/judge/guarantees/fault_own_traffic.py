"""The training's own bytes go through what each network fault disturbs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_targets import missed_traffic
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in missed_traffic(evidence):
        counted = f"{each.measured} bytes in {each.seconds:g} s, at least {each.least} expected ({each.detail})"
        yield of_fault(f"did not meet the training's own traffic on {each.node}: {counted}", each)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), switch="own_traffic", of_a_fault=True)
