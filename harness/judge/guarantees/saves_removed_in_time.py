"""Old checkpoints are removed, so that no more of them pile up than without a fault."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.saves_beside_usual import left_counts, piled_up
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in piled_up(evidence):
        text = f"the store held {each.count} checkpoints at the end, and {each.usually} without a fault"
        yield breach(f"{text}: old ones are no longer removed", each)


def nothing(evidence: Analysis) -> str:
    counts = left_counts(evidence)
    return counts if isinstance(counts, str) else ""


GUARANTEE = Guarantee(breaches, explained_by=("saves.whole", "saves.written_when_told"), nothing=nothing)
