"""All ranks hold the weights that follow from the steps before; a drift is told, and no step of it counts.

The step and the rank that the majority outvotes are named; with two ranks both are. The trainer may say so (`anomaly:
replica`), if the step was rolled back. If a fault changed a rank's weights, a trainer that took digests afterwards and
said nothing, or named another rank, fails. A digest that stays the same though updates were made fails, unless it does
so without a fault.
"""

from harness.judge.facts import replicas
from harness.judge.facts.alarms import unanswered
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Breaches:
    seen = not replicas.weights_unseen(evidence)
    if seen:
        yield from in_words(unanswered(evidence.run, replicas.REPLICA, evidence.weights_apart[1]))
        yield from in_words(replicas.unnoticed(evidence))
    yield from in_words(replicas.other_weights(evidence), Ground(Kind.LOSSES))
    if seen:
        yield from in_words(replicas.same_weights(evidence))
        yield from in_words(replicas.never_together(evidence))


GUARANTEE = Guarantee(breaches, rests_on=("weights",), nothing=replicas.weights_unseen, switch="replicas")
