"""Each fault strikes when and how it is planned, with the effect that it is meant to have."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_effects import before_their_faults, left_as_it_was, not_as_expected
from harness.judge.facts.fault_plans import came_back, other_kinds, other_notices, too_early
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for other in other_kinds(evidence):
        yield of_fault(f"was a `{other.kind}`, and a `{other.planned}` was planned", other)
    for early in too_early(evidence):
        yield of_fault(f"struck after step {early.furthest}, and was planned for step {early.planned}", early)
    yield from _effects(evidence)
    for same in left_as_it_was(evidence):
        yield of_fault(f"left {same.path} as it was: the harness saw the same content before", same)
    for notice in other_notices(evidence):
        after, promised = format_duration(notice.after_ns), format_duration(notice.promised_ns)
        yield of_fault(f"took the node {after} after its notice; {promised} were planned", notice)
    for back in came_back(evidence):
        yield of_fault(f"was to bring no replacement, and {back.node} came back", back)


def _effects(evidence: Analysis) -> Iterator[Breach]:
    for each in before_their_faults(evidence):
        yield of_fault(f"acted only {format_duration(each.early_ns)} after its effect was measured", each)
    for other in not_as_expected(evidence):
        effect = other.effect
        detail = f" ({effect.detail})" if effect.detail else ""
        text = f"did not act as planned: measured {effect.shown}, expected {effect.expected}{detail}"
        yield of_fault(text, other)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
