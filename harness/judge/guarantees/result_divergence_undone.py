"""A loss that a fault drives away is told, no step of it counts, and no samples are left out but those around it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.alarms import after_a_fault, unanswered, unseen
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, in_words
from harness.node.emitter import abnormal


def breaches(evidence: Analysis) -> Iterator[Breach]:
    spikes = after_a_fault(evidence.run, evidence.spikes)
    yield from in_words(unanswered(evidence.run, abnormal.DIVERGENCE, spikes))
    yield from in_words(evidence.left_out.odd)


def nothing(evidence: Analysis) -> str:
    return unseen(evidence.run)


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=nothing, switch="divergence")
