"""From the first checkpoint on, there is always one in the store."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.save_writing import only_one
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in only_one(evidence):
        often = f"{each.times} times, first that of step {each.step}"
        text = f"the only checkpoint in the store was removed before the next one was committed ({often})"
        yield breach(f"{text}: a job that dies in between has lost all", each)


def nothing(evidence: Analysis) -> str:
    return next(iter(evidence.run.unseen), "")


GUARANTEE = Guarantee(
    breaches,
    rests_on=("checkpoints",),
    explained_by=("saves.whole", "saves.written_when_told"),
    nothing=nothing,
)
