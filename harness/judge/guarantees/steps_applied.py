"""Each step applies its optimizer update on all ranks, except a few steps that the loss scaler skips.

The run is inconclusive if it skipped at least 11 more updates than the fault-free run, and if these additional updates
are over 5 % of all steps. The run is also inconclusive if one rank skipped an update that other ranks applied.
"""

import numpy as np

from harness.evidence import ranks
from harness.judge.facts.tellers import UPDATES
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE
from harness.units import counted


def breaches(evidence: Analysis) -> Breaches:
    steps, fault_free = evidence.run.steps, evidence.fault_free
    rows = np.flatnonzero(steps.survives & (steps.applied == 0))
    for step in np.intersect1d(steps.step[rows], steps.step[steps.survives & (steps.applied == 1)])[:1].tolist():
        rank = steps.rank[rows[steps.step[rows] == step]].min()
        text = f"at step {step} rank {rank} left its update out, and others did not: their weights differ"
        yield breach(text, UPDATES)
    mine, done = len(np.unique(steps.step[rows])), len(np.unique(steps.step[steps.survives]))
    usual = 0 if fault_free is None else len(np.unique(fault_free.steps.step[fault_free.steps.applied == 0]))
    if mine - usual > max(UPDATES_LEFT_OUT, UPDATES_LEFT_OUT_SHARE * done):
        text = f"{counted(mine, 'step')} left their update out, first step {steps.step[rows].min()}"
        yield breach(f"{text}; the fault-free run {usual}: not all that was counted was done", UPDATES)
    yield from _applied_by_one_run(evidence)


def _applied_by_one_run(evidence: Analysis) -> Breaches:
    steps, fault_free, compared = evidence.run.steps, evidence.fault_free, evidence.comparison
    if fault_free is None or compared is None or not compared.identical:
        return
    rows, same = ranks.beside(steps, fault_free.steps, "applied", int(compared.step[-1]) - 1)
    for row in rows[~same][:1].tolist():
        what = "left its update out, and not in the fault-free run"
        what = "applied an update that the fault-free run left out" if steps.applied[row] else what
        text = f"at step {steps.step[row]} rank {steps.rank[row]} {what}, though all losses are the same"
        yield breach(text, UPDATES)


GUARANTEE = Guarantee(breaches)
