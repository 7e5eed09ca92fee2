"""All ranks report the same figures for a step, or each rank reports the same figures as in the fault-free run."""

from dataclasses import replace

import numpy as np

from harness.evidence import ranks
from harness.evidence.losses import CURVES, WORDS
from harness.judge.facts import tellers
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import LAST_STEPS
from harness.judge.verdict import Ground, Kind
from harness.timeline.sorted_events import first_strike

SAMPLES = {"digest": "samples", "first": "sample position", "count": "batch size"}  # in words


def breaches(evidence: Analysis) -> Breaches:
    yield from _disagreements(evidence)
    yield from _far_off(evidence)


def _disagreements(evidence: Analysis) -> Breaches:
    """Yields a breach for each quantity, such as the loss, for which ranks log different values in one step. If ranks
    of the fault-free run differ, too, each rank is compared with the same rank of the fault-free run."""
    run, fault_free, bounds = evidence.run, evidence.fault_free, evidence.continuity
    if bounds is None:
        return
    before = run.steps.survives & (run.steps.end < first_strike(run.faults))
    usual = fault_free.steps if fault_free else replace(run.steps, survives=before)
    closely = {"exact": 0.0, "ulp": bounds.max_ulp}.get(bounds.mode) if not evidence.never_the_same else None
    followed = evidence.consumed is not None or bounds.samples == "reported"
    for name, words in (WORDS if followed else WORDS | SAMPLES).items():
        telling = ranks.telling(fault_free.steps if fault_free else run.steps, name)
        local = ranks.is_local(usual, name, telling)
        if local and fault_free is not None:
            allowed = closely if name in CURVES else None if bounds.moves_samples else 0.0
            told = run.steps, fault_free.steps, name
            row = None if allowed is None else ranks.off_the_fault_free_run(*told, allowed, run.changed_after)
            if row is not None:
                whose = f"at step {run.steps.step[row]} the {words} of rank {run.steps.rank[row]}"
                yield breach(f"{whose} differs from the same rank of the fault-free run", grounds=[Ground(Kind.LOSSES)])
        elif bad := ranks.split(run.steps, name, telling):
            text = f"at step {bad[0]} ranks {bad[1]} disagree on the {words}"
            if local:
                yield breach(f"{text}, and no fault-free run shows whether they always do", tellers.UNTOLD)
            else:
                yield breach(text, grounds=[Ground(Kind.LOSSES)])


def _far_off(evidence: Analysis) -> Breaches:
    """Yields a breach for each rank whose last losses never change, or have a far higher median than without a fault. A
    rank's median may be at most `max_final_gap` % above the 95th percentile of the fault-free run's last losses."""
    run, usual, comparison, bounds = evidence.run.steps, evidence.fault_free, evidence.comparison, evidence.continuity
    if bounds is None or bounds.mode != "final" or usual is None or comparison is None or not evidence.own_losses:
        return
    last = comparison.step[-LAST_STEPS:]
    late, told = (each.survives & np.isin(each.step, last) & np.isfinite(each.loss) for each in (run, usual.steps))
    if told.sum() < LAST_STEPS or len(comparison.step) < 2 * LAST_STEPS:
        return
    most = float(np.quantile(usual.steps.loss[told], 0.95))
    for rank in np.unique(run.rank[late]).tolist()[1:]:
        losses, text = run.loss[late & (run.rank == rank)], f"from step {last[0]} on the loss of rank {rank} is"
        if np.median(losses) > most + bounds.max_final_gap / 100 * abs(most):
            told_as = f"{np.median(losses):.4g} in the median, and below {most:.4g} mostly without a fault"
            yield breach(f"{text} {told_as}", tellers.OWN_FIGURES)
        elif len(losses) == LAST_STEPS and np.ptp(losses) == 0 < np.ptp(usual.steps.loss[told]):
            yield breach(f"{text} {losses[0]:g} in each step, and changes without a fault", tellers.OWN_FIGURES)


CAUSES = ("restart.whole_state", "saves.one_writer")
GUARANTEE = Guarantee(breaches, (), CAUSES, nothing=lambda e: e.no_bound() or e.changed() * e.own_losses)
