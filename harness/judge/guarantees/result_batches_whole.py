"""In each step, the ranks together process each sample of the batch once, shared as evenly as without a fault.

Ranks may process different numbers of samples if the fault-free run shares its batches as unevenly at the same world
size. The run fails if a rank processes no sample of a batch that has enough samples for all ranks, although each rank
processes some in the fault-free run.
"""

from harness.judge.facts import ranks
from harness.judge.facts.alarms import unanswered
from harness.judge.facts.replicas import DATA_SKEW, batches_unseen, uneven
from harness.judge.guarantee import Analysis, Breaches, Guarantee, in_words


def breaches(evidence: Analysis) -> Breaches:
    rows = ranks.samples_counted(evidence.run)
    if len(rows) and not batches_unseen(evidence):
        short = ranks.samples_short(evidence.run.steps, rows)
        yield from in_words(unanswered(evidence.run, DATA_SKEW, short))
        yield from in_words(uneven(evidence, rows))


GUARANTEE = Guarantee(breaches, nothing=batches_unseen, switch="rank_samples")
