"""Each step reports the same kinds of figures as without a fault, and the loss and gradient norm keep changing.

The run is inconclusive if a loss, gradient norm or gradient-sync time stays the same for ten steps in which it changes
in the fault-free run. Sync times are not compared if the number of ranks changes. After a fault changed the
configuration, only the loss must still be logged and keep changing. A rank that logs its number of samples
(`rank_samples`) only in some steps makes the run inconclusive, unless the rank logs none in the fault-free run.
"""

from collections.abc import Sequence

import numpy as np

from harness.evidence import by_time, ranks
from harness.evidence.losses import WORDS, Comparison
from harness.judge.bounds import OFF
from harness.judge.facts import tellers
from harness.judge.guarantee import RUN, SECOND_RESTART, Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import SAME_STEPS
from harness.timeline.lineage import NEVER
from harness.units import counted

MOVING = {**{name: WORDS[name] for name in ("loss", "grad_norm")}, "sync_ns": "time of the gradient sync in ns"}


def breaches(evidence: Analysis) -> Breaches:
    yield from _told_by_one(evidence)
    resized = len({epoch.size for epoch in evidence.run.epochs}) > 1
    for of, compared in evidence.compared.items() if evidence.continuity else ():
        yield from never_changing(compared, resized, of=of)
    whole = evidence.compare(NEVER)
    if evidence.continuity and evidence.run.changed_after < NEVER and whole:
        yield from never_changing(whole, resized, ("loss",))
    yield from _samples_untold(evidence)


def _told_by_one(evidence: Analysis) -> Breaches:
    run, fault_free, comparison, bounds = evidence.run, evidence.fault_free, evidence.comparison, evidence.continuity
    if bounds is None or fault_free is None or comparison is None or evidence.incomparable:
        return
    for name, rows in ranks.holes(run.steps, fault_free.steps):
        if len(rows := rows if name == "loss" else rows[run.steps.step[rows] <= run.changed_after]):
            text = f"rank {run.steps.rank[rows[0]]} does not tell its {WORDS[name]} at step {run.steps.step[rows[0]]}"
            such = f"where it does in the fault-free run ({counted(len(rows), 'such value')})"
            yield breach(f"{text}, {such}", tellers.UNTOLD)
        if len(steps := comparison.alone(name)):
            text = f"the {WORDS[name]} of {counted(len(steps), 'step')} is told by one of the two runs only"
            yield breach(f"{text}, first at step {steps[0]}", tellers.UNTOLD)


def never_changing(comparison: Comparison, resized: bool, names: Sequence[str] = (*MOVING,), of: str = "") -> Breaches:
    for name in names[: 2 if resized else 3]:
        mine, usual = getattr(comparison.run, name), getattr(comparison.fault_free, name)
        for part in by_time.stretches(mine[1:] == mine[:-1]):
            if part.stop - part.start >= SAME_STEPS and not (usual[1:] == usual[:-1])[part].any():
                steps = f"{comparison.step[part.start]} to {comparison.step[part.stop]}"
                text = f"the {MOVING[name]}{of} is {mine[part.start]:g} in all steps {steps}"
                yield breach(f"{text}, and changes at each of them without a fault", tellers.OWN_FIGURES)


def _samples_untold(evidence: Analysis) -> Breaches:
    run, fault_free = evidence.run, evidence.fault_free
    here = ranks.tells_samples(run.steps)
    usual = fault_free.steps.rank[ranks.tells_samples(fault_free.steps)] if fault_free else ()
    if (run.plan.get("expect") or {}).get("rank_samples") == OFF or not (len(usual) or here.any()):
        return
    if not here.any():
        yield breach("the ranks did not report their samples, but those of the fault-free run did", tellers.UNTOLD)
        return
    usual = usual if len(usual) else run.steps.rank  # a rank that is silent in the fault-free run may be silent
    silent = np.flatnonzero(run.steps.survives & run.steps.complete & ~here & np.isin(run.steps.rank, usual))
    if len(silent):
        row = silent[np.lexsort((run.steps.rank[silent], run.steps.step[silent]))[0]]
        who = f"at step {run.steps.step[row]} rank {run.steps.rank[row]}"
        yield breach(f"{who} did not report its samples, but others were reported", tellers.UNTOLD)


GUARANTEE = Guarantee(breaches, ("loss",), (), (RUN, SECOND_RESTART), lambda e: e.no_bound() or e.changed())
