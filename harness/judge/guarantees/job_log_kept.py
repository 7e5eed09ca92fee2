"""The log of a process that lived holds each line that it wrote."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in evidence.lost_lines:
        if not each.killed:
            yield breach(f"{each.words}, though its process lived: they were lost or removed", each)


GUARANTEE = Guarantee(breaches, needs_steps=False)
