"""A restart met the checkpoint that a fault damaged."""

from __future__ import annotations

from harness.judge.facts.damage_met import never_met
from harness.judge.facts.restored_states import no_damage
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for each in never_met(evidence):
        yield breach(
            f"the checkpoint that `{each.fault}` damaged was never needed: the job went on from a newer one", each
        )


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=no_damage)
