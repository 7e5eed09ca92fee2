"""All ranks do their steps together, as one group."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.steps_done import OtherSize, in_parts, of_ranks, went_ahead
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.judge.verdict import Ground, Kind


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in went_ahead(evidence.run):
        text = f"{of_ranks(each.ranks, each.size)} went on to step {each.last} alone"
        grounds = [Ground(Kind.ABSENCE, since=each.since)]
        if each.absent:
            grounds.insert(0, Ground(Kind.ABSENCE, processes=each.absent, since=each.since))
        yield breach(f"{text}; the others stopped at step {each.others}", each, grounds=grounds, idle=each.undone)
    for part in in_parts(evidence.run, evidence.fault_free):
        if isinstance(part, OtherSize):
            text = f"rank {part.rank} began step {part.step} in a group of {part.told}"
            text += f", and others did it in a group of {part.size}"
        else:
            text = f"{part.absent} of {part.size} ranks did none of the steps {part.first} to {part.last}"
            text += ", though they have logs: the group was not one"
        yield breach(text, part)


GUARANTEE = Guarantee(breaches)
