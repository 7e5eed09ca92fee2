"""A restart met the checkpoint that a fault damaged."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.damage_met import never_met
from harness.judge.facts.restored_states import no_damage
from harness.judge.guarantee import RUN, Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in never_met(evidence):
        yield breach(
            f"the checkpoint that `{each.fault}` damaged was never needed: the job went on from a newer one", each
        )


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=no_damage)
