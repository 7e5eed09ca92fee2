"""The ranks of a step compute with each sample of its batch once, in parts as even as without a fault."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts import batches
from harness.judge.facts.alarms import unanswered
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, in_words


def breaches(evidence: Analysis) -> Iterator[Breach]:
    yield from in_words(unanswered(evidence.run, batches.DATA_SKEW, batches.short(evidence)))
    yield from in_words(batches.unlike(evidence))


GUARANTEE = Guarantee(breaches, nothing=batches.unseen, switch="rank_samples")
