"""How the ranks share the samples of each batch: is it whole, and is it shared as without a fault?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.judge.bounds import OFF
from harness.judge.facts import ranks
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By, Odd
from harness.judge.facts.ranks import Short

DATA_SKEW = "data_skew"  # by this word a trainer tells of it


def unseen(evidence: Analysis) -> str:
    """Why it is not judged whether batches are whole; an empty text: it is."""
    usual = evidence.fault_free
    also = usual is not None and ranks.samples_short(usual.steps, ranks.samples_counted(usual))
    return "the ranks of the fault-free run leave samples out, too" if also else ""


def short(evidence: Analysis) -> Sequence[Short]:
    found = ranks.samples_short(evidence.run.steps, ranks.samples_counted(evidence.run))
    return found if found and not unseen(evidence) else ()


def unlike(evidence: Analysis) -> Iterator[Odd]:
    """A rank with none of a batch that is large enough for all, or with far fewer than another one, where as many ranks
    share their batches evenly in the fault-free run."""
    run, fault_free, rows = evidence.run, evidence.fault_free, ranks.samples_counted(evidence.run)
    if not len(rows) or unseen(evidence):
        return
    usual = dict[int, tuple[bool, int]]()  # by number of ranks: whether each has some, and how far they are apart
    if fault_free is not None:
        size, least, most = ranks.parts(fault_free.steps, ranks.samples_counted(fault_free))
        few, many = fault_free.steps.rank_samples[least], fault_free.steps.rank_samples[most]
        for each in np.unique(size).tolist():
            same = size == each
            usual[each] = bool((few[same] > 0).all()), max(1, int((many - few)[same].max()))
    size, least, most = ranks.parts(run.steps, rows)
    sizes, of = np.unique(size, return_inverse=True)
    known, each_has, apart = (
        np.array(column)[of]
        for column in zip(*((each in usual, *usual.get(each, (True, 0))) for each in sizes.tolist()), strict=True)
    )
    few, many = run.steps.rank_samples[least], run.steps.rank_samples[most]
    none = (few == 0) & (run.steps.count[least] >= size) & each_has
    wrong, odd = none & known, none | (known & (many - few > apart))
    place = int((wrong if wrong.any() else odd).argmax())
    step, one, other = run.steps.step[least[place]], run.steps.rank[least[place]], run.steps.rank[most[place]]
    text = f"at step {step} rank {one} computed with {few[place]} samples and rank {other} with {many[place]}"
    if wrong.any():
        yield Odd(f"{text}; in the fault-free run each rank has some")
    elif odd.any() and known[place]:
        yield Odd(f"{text}; in the fault-free run they have nearly as many", By.TOLD)
    elif odd.any():
        yield Odd(f"{text}; no fault-free run shows whether that is usual", By.MISSING)


def untold(evidence: Analysis) -> Iterator[Odd]:
    """A trainer that tells its samples in some steps tells them in all: what it leaves out may be what went wrong."""
    run, fault_free = evidence.run, evidence.fault_free
    here = ranks.tells_samples(run.steps)
    usual = fault_free.steps.rank[ranks.tells_samples(fault_free.steps)] if fault_free else ()
    if (run.plan.get("expect") or {}).get("rank_samples") == OFF or not (len(usual) or here.any()):
        return
    if not here.any():
        yield Odd("the ranks did not report their samples, but those of the fault-free run did", By.MISSING)
        return
    usual = usual if len(usual) else run.steps.rank  # who is silent there is silent by rule
    silent = np.flatnonzero(run.steps.survives & run.steps.complete & ~here & np.isin(run.steps.rank, usual))
    if len(silent):
        row = silent[np.lexsort((run.steps.rank[silent], run.steps.step[silent]))[0]]
        who = f"at step {run.steps.step[row]} rank {run.steps.rank[row]}"
        yield Odd(f"{who} did not report its samples, but others were reported", By.MISSING)
