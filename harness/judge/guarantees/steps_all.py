"""Every rank does every step that counts."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.losses import MISSING_MAX
from harness.judge.facts.steps_done import left_out, never_done, of_ranks
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.judge.verdict import Ground, Kind
from harness.timeline.timeline import Ints

NAMED_STEPS = 5


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in left_out(evidence):
        alone = each.first == each.last
        which = f"step {each.first}" if alone else f"steps {each.first} to {each.last}"
        steps = (each.first,) if alone else (each.first, each.last)
        text = f"{of_ranks(each.ranks, each.size)} did not do {which}, but other ranks did"
        yield breach(text, each, grounds=[Ground(Kind.ABSENCE, each.processes, steps, each.lines)])
    for missing in never_done(evidence):
        text = f"{named(missing.steps)}: never done in the surviving history, though later steps were"
        yield breach(text, missing, grounds=[Ground(Kind.ABSENCE, steps=tuple(missing.steps.tolist()))])


def named(numbers: Ints) -> str:
    shown = ", ".join(str(number) for number in numbers[:NAMED_STEPS].tolist())
    more = ", …" if len(numbers) > NAMED_STEPS else ""
    many = " or more" if len(numbers) >= MISSING_MAX else ""
    return f"steps {shown}{more} ({len(numbers)}{many})" if len(numbers) > 1 else f"step {shown}"


GUARANTEE = Guarantee(breaches)
