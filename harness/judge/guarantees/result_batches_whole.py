"""In each step, the ranks together process each sample of the batch once, shared as evenly as without a fault.

Ranks may process different numbers of samples if the fault-free run shares its batches as unevenly at the same world
size. The run fails if a rank processes no sample of a batch that has enough samples for all ranks, although each rank
processes some in the fault-free run. The run also fails if, in 3 steps in a row, a rank processes no samples, another
rank's samples of the same or an earlier step, or samples of an earlier step since the rank's start, although no rank of
the fault-free run does so as soon. The run fails, too, if a fault gave a rank other samples than its part of the batch,
and the trainer's alarm (`anomaly: data_skew`) named another rank.
"""

import numpy as np

from harness.evidence import ranks
from harness.judge.facts import tellers
from harness.judge.facts.alarms import misnamed, unanswered
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach, in_words
from harness.timeline.timeline import Ints, Timeline

DATA_SKEW = "data_skew"  # kind of anomaly as a trainer names it


def breaches(evidence: Analysis) -> Breaches:
    skewing = [fault for fault in evidence.run.faults if fault.skews]
    yield from in_words(misnamed(evidence.run, DATA_SKEW, skewing))
    rows = ranks.samples_counted(evidence.run)
    if len(rows) and not nothing(evidence):
        short = ranks.samples_short(evidence.run.steps, rows)
        yield from in_words(unanswered(evidence.run, DATA_SKEW, short))
        yield from _uneven(evidence, rows)
    if usual := _listed(evidence):
        for words in ranks.unusual_batches(evidence.run, usual, 3):
            yield breach(f"{words}, and so on for 3 steps, unlike all ranks of the fault-free run")


def _listed(evidence: Analysis) -> Timeline | None:
    runs = [each for each in (evidence.fault_free, evidence.run) if each and (each.steps.samples >= 0).any()]
    return runs[0] if len(runs) == 2 and not evidence.flaw(runs[0]) else None


def nothing(evidence: Analysis) -> str:
    run, usual = evidence.run, evidence.fault_free
    if (run.steps.samples >= 0).any() and not len(ranks.samples_counted(run)) and not _listed(evidence):
        return "no fault-free run shows how ranks share samples"
    also = usual is not None and ranks.samples_short(usual.steps, ranks.samples_counted(usual))
    return "the ranks of the fault-free run leave samples out, too" if also else ""


def _uneven(evidence: Analysis, rows: Ints) -> Breaches:
    run, fault_free = evidence.run, evidence.fault_free
    usual, usual_few, usual_many = np.zeros((3, 0), np.int64)  # number of ranks; least and most samples of one rank
    if fault_free is not None:
        usual, *theirs = ranks.parts(fault_free.steps, ranks.samples_counted(fault_free))
        usual_few, usual_many = (fault_free.steps.rank_samples[each] for each in theirs)
    size, least, most = ranks.parts(run.steps, rows)
    few, many = run.steps.rank_samples[least], run.steps.rank_samples[most]
    known, none, far = np.isin(size, usual), (few == 0) & (run.steps.count[least] >= size), many - few > 1
    for each in np.unique(usual).tolist():
        here, there = size == each, usual == each
        none[here] &= bool((usual_few[there] > 0).all())
        far[here] &= (many - few)[here] > (usual_many - usual_few)[there].max()
    wrong, odd = none & known, none | (known & far)
    place = int((wrong if wrong.any() else odd).argmax())
    step, one, other = run.steps.step[least[place]], run.steps.rank[least[place]], run.steps.rank[most[place]]
    text = f"at step {step} rank {one} computed with {few[place]} samples and rank {other} with {many[place]}"
    if wrong.any():
        yield breach(f"{text}; in the fault-free run each rank has some")
    elif odd.any() and known[place]:
        yield breach(f"{text}; in the fault-free run they have nearly as many", tellers.OWN_FIGURES)
    elif odd.any():
        yield breach(f"{text}; no fault-free run shows whether that is usual", tellers.UNTOLD)


GUARANTEE = Guarantee(breaches, nothing=nothing, switch="rank_samples")
