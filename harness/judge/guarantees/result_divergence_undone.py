"""A loss that a fault drives away is told, no step of it counts, and no samples are left out but those around it.

Looked for only if a fault may drive the loss away, or if the trainer said so. The run fails if the trainer did not say
it (`anomaly: divergence`), or said it and the steps of the spike survive. Left out may be what the rule allows around
a spike in the log: the batch before it and seven more, as many batches as the fault has steps and 8 more together. It
fails if nothing diverged there, if they are others or more, if they were consumed all the same, or if no fault
accounts for the spike (it begins while the fault acts, or at most 8 steps later). Not judged if the loss is told in
less than half of the steps.
"""

from harness.judge.facts.alarms import after_a_fault, unanswered, unseen
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.node.emitter import abnormal


def breaches(evidence: Analysis) -> Breaches:
    spikes = after_a_fault(evidence.run, evidence.spikes)
    yield from in_words(unanswered(evidence.run, abnormal.DIVERGENCE, spikes))
    yield from in_words(evidence.left_out.odd)


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=unseen, switch="divergence")
