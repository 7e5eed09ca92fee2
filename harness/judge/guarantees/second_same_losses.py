"""A second restart, which repeats the run's last steps, gets the same losses, norms, learning rates and weights."""

from harness.evidence.losses import WORDS
from harness.judge.facts.done_again import done_again, not_done
from harness.judge.guarantee import Analysis, Breaches, of_second, second_guarantee

OF_EACH_RANK = {**WORDS, "weights": "digest of the weights", "rank_samples": "number of samples"}


def breaches(evidence: Analysis) -> Breaches:
    if again := done_again(evidence):
        yield from (of_second(each.words, each) for each in again.off())
        yield from map(of_second, again.of_ranks(OF_EACH_RANK) if again.repeats else ())


GUARANTEE = second_guarantee(breaches, not_done)
