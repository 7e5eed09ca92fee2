"""All ranks of a restart take one step, and each goes on with the step after it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restored_states import apart, went_on_elsewhere
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in went_on_elsewhere(evidence):
        state = each.restore
        lost = [Ground(Kind.ABSENCE, (state.process,), ((state.step or 0) + 1,))] if each.left_out else []
        yield breach(f"{state.said}, but went on with step {state.went_on}", each, grounds=lost)
    for world in apart(evidence):
        steps = ", ".join(map(str, world.steps))
        yield breach(f"ranks of one world restored different steps: {steps}", world)


GUARANTEE = Guarantee(breaches, rests_on=("restores",))
