"""A loss that a fault drives away is told, no step of it counts, and no samples are left out but those around it.

Loss spikes are searched for only if a fault may drive the loss away, or if the trainer reported a divergence. The run
fails if the trainer did not report a spike (`anomaly: divergence`), or if the steps of the spike survive. The trainer
may leave out the batch before the spike and seven more; all rollbacks together may leave out as many batches as the
fault has steps, and 8 more. The run fails if nothing diverged there, if other or more samples are left out, if some of
them were consumed all the same, or if no fault explains the spike. A fault explains a spike that begins while the fault
acts, or at most 8 steps later. The guarantee is not judged if less than half of the steps report their loss.
"""

from harness.judge.facts.alarms import after_a_fault, unanswered, unseen
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.node.emitter import abnormal


def breaches(evidence: Analysis) -> Breaches:
    spikes = after_a_fault(evidence.run, evidence.spikes)
    yield from in_words(unanswered(evidence.run, abnormal.DIVERGENCE, spikes))
    yield from in_words(evidence.left_out.odd)


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=unseen, switch="divergence")
