"""A second restart computes the same in the steps that it does once more: losses, norms, learning rates, weights."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.facts.losses import WORDS
from harness.judge.guarantee import Breach, of_second, second_guarantee

OF_EACH_RANK = {**WORDS, "weights": "digest of the weights", "rank_samples": "number of samples"}


def breaches(evidence: Analysis) -> Iterator[Breach]:
    if again := done_again(evidence):
        for each in again.off():
            was = f"{each.other:.9g}, and the run's was {each.mine:.9g}"
            yield of_second(f"at step {each.step} its {each.name} is {was}", each)
        for words in again.of_ranks(OF_EACH_RANK):
            yield of_second(words, again.made)


GUARANTEE = second_guarantee(breaches, not_done)
