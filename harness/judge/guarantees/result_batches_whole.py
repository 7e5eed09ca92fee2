"""The ranks of a step compute with each sample of its batch once, in parts as even as without a fault.

Parts of unequal size are right if ranks have them in the fault-free run at the same world size. A rank without a
sample of a batch that is large enough for all fails, if each rank has some there. A rank that leaves `rank_samples`
out in some steps makes the run inconclusive, unless it never tells it without a fault.
"""

from harness.judge.facts.replicas import batches_unseen, short, uneven
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words


def breaches(evidence: Analysis) -> Breaches:
    yield from in_words(short(evidence))
    yield from in_words(uneven(evidence))


GUARANTEE = Guarantee(breaches, nothing=batches_unseen, switch="rank_samples")
