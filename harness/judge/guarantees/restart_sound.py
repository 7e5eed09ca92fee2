"""Each restart restores exactly what was saved, and never a checkpoint that a fault damaged.

The run fails if a restart loads a checkpoint in which a fault damaged tensors, and no rank reports the damage. A
damaged checkpoint counts as sound again once the job has saved it anew. A restart may load damaged tensors that match
the checkpoint's digests, if the job rolls back all later steps.
"""

from harness.judge.facts.restarts import Restore
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.timeline.lookups import grouped


def breaches(evidence: Analysis) -> Breaches:
    told = ((restart, *state) for restart in evidence.restarts for state in restart.states)
    by_step, unaware = grouped((step, (restart, restore)) for restart, restore, step in told), list[Restore]()
    for damage in (each for damaged in evidence.saves.damage.values() for each in damaged if each.tensor_bytes):
        for restart, restore in by_step.get(damage.step or 0, ()):
            known = any(passed_over.is_damaged(damage) for passed_over in restart.passed_over)
            if known or not restore.took(damage, evidence.run.uncertainty_ns):
                continue
            if damage.sealed and restart.epoch.kept < restart.epoch.first:
                unaware.append(restore)
            else:
                done = f"{damage.how}, {damage.tensor_bytes} byte{'s' * (damage.tensor_bytes != 1)} of tensors"
                text = f"the job resumed from the checkpoint that `{damage.fault}` damaged"
                anew = [damage.anew] if restore.at > damage.anew.at else []
                unseen = "; the trainer said it had saved that anew, and the harness did not see it" if anew else ""
                what = "kept what came of it" if damage.sealed else "did not report the damage"
                yield breach(f"{text}, and {what} ({done} in {damage.path}){unseen}", damage, *anew)
    for restore in (restore for restart in evidence.restarts[1:] for restore in restart.restores):
        if restore.is_another and restore not in unaware:
            yield breach(restore.is_another, restore.digests)


GUARANTEE = Guarantee(breaches, rests_on=("restores",), nothing=Analysis.no_damage)
