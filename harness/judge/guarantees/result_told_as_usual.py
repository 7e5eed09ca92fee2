"""Each step reports the same kinds of figures as without a fault, and the loss and gradient norm keep changing.

The run is inconclusive if a loss, gradient norm or gradient-sync time stays the same for ten steps in which it changes
in the fault-free run. Sync times are not compared if the number of ranks changes. A rank that reports its samples
(`rank_samples`) only in some steps makes the run inconclusive, unless the rank never does so in the fault-free run.
"""

from harness.judge.facts import agreement, replicas
from harness.judge.guarantee import RUN, SECOND_RESTART, Analysis, Breaches, Guarantee, in_words


def breaches(evidence: Analysis) -> Breaches:
    yield from in_words(agreement.untold(evidence))
    resized = len({epoch.size for epoch in evidence.run.epochs}) > 1
    yield from in_words(agreement.never_changing(evidence.comparison, resized) if evidence.continuity else ())
    yield from in_words(replicas.samples_untold(evidence))


GUARANTEE = Guarantee(breaches, rests_on=("loss",), holds_for=(RUN, SECOND_RESTART), nothing=agreement.unbound)
