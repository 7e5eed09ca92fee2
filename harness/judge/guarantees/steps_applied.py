"""Each step applies its update, on all ranks alike; only a few are left out over a loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.steps_done import ApartUpdates, other_updates, updates_left_out
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.units import counted


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in updates_left_out(evidence.run, evidence.fault_free):
        if isinstance(each, ApartUpdates):
            text = f"at step {each.step} rank {each.rank} left its update out, and others did not: their weights differ"
        else:
            text = f"{counted(each.steps, 'step')} left their update out, first step {each.first}"
            text += f"; the fault-free run {each.usual}: not all that was counted was done"
        yield breach(text, each)
    for other in other_updates(evidence):
        what = "left its update out, and not in the fault-free run"
        what = "applied an update that the fault-free run left out" if other.applied else what
        text = f"at step {other.step} rank {other.rank} {what}, though all losses are the same"
        yield breach(text, other)


GUARANTEE = Guarantee(breaches)
