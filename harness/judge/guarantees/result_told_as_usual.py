"""Each step reports the same kinds of figures as without a fault, and the loss and gradient norm keep changing.

The time of the gradient sync keeps changing, too, unless the number of ranks changes.
"""

from harness.judge.facts import agreement, replicas
from harness.judge.guarantee import RUN, SECOND_RESTART, Analysis, Breaches, Guarantee, in_words


def breaches(evidence: Analysis) -> Breaches:
    yield from in_words(agreement.untold(evidence))
    resized = len({epoch.size for epoch in evidence.run.epochs}) > 1
    yield from in_words(agreement.never_changing(evidence.comparison, resized) if evidence.continuity else ())
    yield from in_words(replicas.samples_untold(evidence))


GUARANTEE = Guarantee(breaches, rests_on=("loss",), holds_for=(RUN, SECOND_RESTART), nothing=agreement.unbound)
