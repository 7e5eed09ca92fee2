"""All ranks report the same figures for a step, or each rank reports the same figures as in the fault-free run."""

from dataclasses import replace

from harness.evidence import ranks
from harness.evidence.losses import CURVES, WORDS
from harness.judge.facts import tellers
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.sorted_events import first_strike

SAMPLES = {"digest": "samples", "first": "sample position", "count": "batch size"}  # in words


def breaches(evidence: Analysis) -> Breaches:
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


CAUSES = ("restart.whole_state", "saves.one_writer")
GUARANTEE = Guarantee(breaches, (), CAUSES, nothing=lambda e: e.no_bound() or e.changed() * e.own_losses)
