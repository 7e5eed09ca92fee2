"""In each step, the ranks together process each sample of the batch once, shared as evenly as without a fault.

An uneven share is no breach if the fault-free run shares its batches as unevenly at the same world size. The run fails
if a rank has no sample of a batch that is large enough for all ranks, though each rank has some in the fault-free run.
A rank that reports its number of samples (`rank_samples`) only in some steps makes the run inconclusive. A rank that
never reports this number in the fault-free run is exempt.
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
