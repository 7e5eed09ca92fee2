"""A checkpoint is told as committed once it is written, and not before."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.save_writing import told_early
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in told_early(evidence):
        often = f"{each.times} times, first that of step {each.step}"
        yield breach(f"checkpoints were told as committed before they were written ({often})", each)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), explained_by=("saves.whole",))
