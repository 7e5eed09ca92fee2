"""Weights of ranks beside each other, beside those of the fault-free run, and beside what faults did to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.judge.facts import ranks
from harness.judge.facts.alarms import UNTOLD, Said
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By, Odd
from harness.judge.facts.ranks import Apart
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord

REPLICA = "replica"  # by this word a trainer tells of it


def unseen(evidence: Analysis) -> str:
    """Why it is not judged whether ranks agree; an empty text: it is."""
    if evidence.own_weights:
        return "the ranks of the fault-free run differ, too"
    return "the log holds no digest of the weights" if _drifted(evidence) and not evidence.weights_apart[0] else ""


def _drifted(evidence: Analysis) -> Sequence[FaultRecord]:
    return [fault for fault in evidence.run.faults if fault.drifts and fault.injected is not None]


def apart(evidence: Analysis) -> Sequence[Apart]:
    return () if unseen(evidence) else evidence.weights_apart[1]


def unnoticed(evidence: Analysis) -> Iterator[Odd]:
    """Weights that a fault changed, as it measured, of which the trainer said nothing or named another rank."""
    run, said = evidence.run, Said(evidence.run, REPLICA)
    for fault in () if unseen(evidence) else _drifted(evidence):
        since = (fault.injected or 0) - run.uncertainty_ns
        acted = [int(effect["at"]) for effect in fault.effects if effect.get("ok") is True]
        victims = sorted({target["rank"] for target in fault.targets if isinstance(target.get("rank"), int)})
        shown = ", ".join(map(str, victims))
        wrong = sorted(rank for rank, last in said.suspects().items() if last >= since and rank not in victims)
        if said.of(fault.injected or 0, None):
            if victims and wrong:
                names = ", ".join(map(str, wrong))
                yield Odd(f"the trainer named rank {names}, but fault {fault.id} changed rank {shown}")
        elif checked := [step for rank in victims for step in ranks.digests_after(run.steps, rank, acted)]:
            text = f"fault {fault.id} changed the weights of rank {shown}, {UNTOLD}"
            yield Odd(f"{text}, though it took digests at step {min(checked)}")


def others(evidence: Analysis) -> Iterator[Odd]:
    """Weights follow from the steps before: where those are the fault-free run's bit for bit, so are the weights. Where
    each rank holds its own part, only in worlds of the same size."""
    run, fault_free, comparison = evidence.run, evidence.fault_free, evidence.comparison
    if fault_free is None or comparison is None or evidence.incomparable:
        return
    spoilt = any(fault.injected is not None and (fault.drifts or fault.diverges) for fault in run.faults)
    last = comparison.first_divergent_step or NEVER  # which began with the same weights, unless a fault spoilt them
    rows, same = ranks.beside(run.steps, fault_free.steps, "weights", last - spoilt)
    if evidence.own_weights:
        alike = np.array([epoch.size == fault_free.largest_world for epoch in run.epochs], np.bool_)
        rows, same = rows[alike[run.steps.epoch[rows]]], same[alike[run.steps.epoch[rows]]]
    if same.all():
        return
    step, first, struck = run.steps.step[rows], rows[~same][0], min(first_strike(run.faults), run.end)
    shown = same & (step > step[0]) & (run.steps.end[rows] < struck)
    text = f"at step {run.steps.step[first]} rank {run.steps.rank[first]} computed with other weights than in the"
    text += " fault-free run, though all steps before it were the same"
    if shown.any() and run.steps.begin[first] >= struck:
        yield Odd(text)
    elif comparison.identical:
        yield Odd(f"{text}; nothing shows that they are the same in every run", By.MISSING)


def unchanged(evidence: Analysis) -> Iterator[Odd]:
    """Each update changes the weights, unless those of the fault-free run stay the same, too."""
    fault_free, again = evidence.fault_free, None if unseen(evidence) else ranks.weights_again(evidence.run.steps)
    if again is not None and not (fault_free and ranks.weights_again(fault_free.steps)):
        text = f"at step {again[0]} the weights are those of step {again[1]}, though there were updates in between"
        yield Odd(text, By.SEEN if fault_free else By.MISSING)


def never_together(evidence: Analysis) -> Iterator[Odd]:
    """Ranks that tell their weights since the last restart or fault, and never in the same step, as without a fault."""
    run, fault_free = evidence.run, evidence.fault_free
    if fault_free is None or not run.epochs or run.epochs[-1].size != fault_free.largest_world or unseen(evidence):
        return
    struck = min((fault.injected for fault in run.faults if fault.injected is not None), default=run.begin)
    mine = (run.steps.epoch == len(run.epochs) - 1) & (run.steps.begin > struck)
    since = int(run.steps.step[mine].min(initial=NEVER))
    told, usual = ranks.weights_together(run.steps, mine), ranks.weights_together(fault_free.steps)
    usual = usual[(usual >= since) & (usual <= run.epochs[-1].kept)]
    if not len(told) and len(usual) > 1 and len(np.unique(run.steps.rank[mine & (run.steps.weights != 0)])) > 1:
        text = f"since step {since} no two ranks told digests of their weights in the same step"
        yield Odd(f"{text}; in the fault-free run they do", By.MISSING)
