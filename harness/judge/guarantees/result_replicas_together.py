"""All ranks hold the weights that follow from the steps before; a drift is told, and no step of it counts."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts import weights
from harness.judge.facts.alarms import unanswered
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import Breach, Guarantee, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Iterator[Breach]:
    yield from in_words(unanswered(evidence.run, weights.REPLICA, weights.apart(evidence)))
    yield from in_words(weights.unnoticed(evidence))
    yield from in_words(weights.others(evidence), Ground(Kind.LOSSES))
    yield from in_words(weights.unchanged(evidence))
    yield from in_words(weights.never_together(evidence))


GUARANTEE = Guarantee(breaches, rests_on=("weights",), nothing=weights.unseen, switch="replicas")
