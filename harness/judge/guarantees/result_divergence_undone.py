"""If a fault makes the loss diverge, the trainer reports and rolls back the spike, and skips only samples near it.

Loss spikes are searched for only if a fault may make the loss diverge, or if the trainer reported a divergence or
skipped samples. The run fails if the trainer did not report a spike (`anomaly: divergence`), did not roll its steps
back, skipped samples that are near no spike, or consumed skipped samples. For each spike, the trainer may skip 8
batches, starting with the batch before the spike. In all, the trainer may skip 8 batches for each fault, and one for
each step that a fault spoiled. Each spike around which samples are skipped must have a cause: a fault that acted when
the spike began, or at most 8 steps before. The guarantee is judged only if the trainer logs the loss in most steps.
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


GUARANTEE = Guarantee(breaches, rests_on=("loss",), nothing=lambda e: unseen(e) or e.changed(), switch="divergence")
