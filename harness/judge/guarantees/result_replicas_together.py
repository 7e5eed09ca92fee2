"""All replicas of the model hold the same weights, or the trainer reports the difference and rolls the steps back.

A breach names the step and the rank whose weights differ from the majority's, or both ranks of a job with two ranks. If
the weights of ranks differ, the trainer must report this (`anomaly: replica`) and roll the step back. After a fault
changed a rank's weights, the run fails if the trainer took digests and reported nothing, or named a wrong rank. The run
also fails if updates leave the digest of weights unchanged, unless they do so in the fault-free run.
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
