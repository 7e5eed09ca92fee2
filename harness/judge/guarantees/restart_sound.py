"""No restart takes a damaged checkpoint as if it were sound: what it restores is what was saved."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restored_states import no_damage, other_content, took_damaged
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in took_damaged(evidence):
        damage = each.damage
        done = f"{damage.how}, {damage.tensor_bytes} byte{'s' * (damage.tensor_bytes != 1)} of tensors"
        text = f"the job resumed from the checkpoint that `{damage.fault}` damaged, and did not report the damage"
        unseen = "; the trainer said it had saved that anew, and the harness did not see it" if each.anew else ""
        yield breach(f"{text} ({done} in {damage.path}){unseen}", each)
    for other in other_content(evidence):
        yield breach(other.words, other)


GUARANTEE = Guarantee(breaches, rests_on=("restores",), nothing=no_damage)
