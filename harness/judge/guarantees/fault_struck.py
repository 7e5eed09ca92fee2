"""Each planned fault strikes, and its effect is measured."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_effects import no_effect
from harness.judge.facts.strikes import BeginUntold, failed, never_struck
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in never_struck(evidence):
        if isinstance(each, BeginUntold):
            yield of_fault("measured an effect, but did not report when it began", each)
        else:
            why = f"it was due, but held back: {each.held_back}" if each.held_back else "its trigger never came"
            yield of_fault(f"never struck: {why}", each)
    for broke in failed(evidence):
        yield of_fault(f"failed: {broke.error}", broke)
    for unmeasured in no_effect(evidence):
        yield of_fault("was injected, but no effect was measured", unmeasured)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
