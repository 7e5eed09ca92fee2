"""If a fault makes the loss diverge, the trainer reports and rolls back the spike, and skips only samples near it.

Loss spikes are searched for only if a fault may make the loss diverge, or if the trainer reported a divergence or
skipped samples. The run fails if the trainer did not report a spike (`anomaly: divergence`) or did not roll its steps
back. For one spike, the trainer may skip 8 batches, beginning with the batch before the spike. All rollbacks together
may skip one batch for each step that a fault spoiled, and 8 batches for each fault. The run fails if the trainer skips
samples that are near no spike, or consumes skipped samples later. The run also fails if no fault explains the spike. A
fault explains a spike that begins while the fault acts, or at most 8 steps later. The guarantee is not judged if most
steps report no loss.
"""

from harness.judge.facts.alarms import after_a_fault, unanswered, unseen
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.node.emitter import abnormal


def breaches(evidence: Analysis) -> Breaches:
    spikes = after_a_fault(evidence.run, evidence.spikes)
    yield from in_words(unanswered(evidence.run, abnormal.DIVERGENCE, spikes))
    yield from in_words(evidence.left_out.odd)


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=unseen, switch="divergence")
