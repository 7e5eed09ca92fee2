"""If a fault makes the loss diverge, the trainer reports and rolls back the spike, and skips only samples near it.

Loss spikes are searched for only if a fault may make the loss diverge, or if the trainer reported a divergence or
skipped samples. The run fails if the trainer did not report a loss spike (`anomaly: divergence`), or did not roll the
spike's steps back. For one spike, the trainer may skip 8 batches, beginning with the batch before the spike. In all
rollbacks together, the trainer may skip one batch for each step that a fault spoiled, and 8 batches for each fault. The
run fails if the trainer skips samples that are near no spike, or consumes samples that it had skipped. The run fails if
no fault explains a spike around which samples are skipped. A fault explains a spike that begins while the fault acts,
or at most 8 steps after its end. The guarantee is not judged if the trainer does not log the loss in most steps.
"""

from harness.judge.facts.alarms import diverging, unanswered, unseen
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words
from harness.node.emitter import abnormal
from harness.timeline.sorted_events import first_strike


def breaches(evidence: Analysis) -> Breaches:
    since = first_strike(diverging(evidence.run.faults))
    spikes = [spike for spike in evidence.spikes if spike.end >= since]
    yield from in_words(unanswered(evidence.run, abnormal.DIVERGENCE, spikes))
    yield from in_words(evidence.left_out.odd)


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=unseen, switch="divergence")
