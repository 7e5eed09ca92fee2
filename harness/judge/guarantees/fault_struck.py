"""Each planned fault strikes, and its effect is measured."""

from harness.evidence.faults import own_faults, stopped
from harness.evidence.work import given_up_early
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, of_fault
from harness.timeline.lookups import grouped


def breaches(evidence: Analysis) -> Breaches:
    run, work = evidence.run, evidence.work
    records = grouped((record.id, record) for record in run.faults)
    ended = run.beside.cut_short or given_up_early(run)
    for name in evidence.planned_faults if not ended else ():
        found = records.get(name, ())
        if any(record.injected is not None or record.error for record in found):
            continue
        if any(record.effects for record in found):
            yield of_fault("measured an effect, but did not report when it began", name)
            continue
        why = next((f"it was due, but held back: {each.held_back}" for each in found if each.held_back), "")
        yield of_fault(f"never struck: {why or 'its trigger never came'}", name)
    for fault in own_faults(run):
        if fault.error:
            yield of_fault(f"failed: {fault.error}", fault.id)
        elif fault.injected is not None and not fault.effects and stopped(work, fault) is None:
            yield of_fault("was injected, but no effect was measured", fault.id)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
