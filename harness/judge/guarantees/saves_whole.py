"""Each checkpoint that was told as committed is one: whole, of its step, and where the harness looks for it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for none in sorted(evidence.saves.none.values(), key=lambda each: each.save.last_at):
        yield breach(f"the checkpoint of step {none.save.step} is none: {none.why}", none)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",))
