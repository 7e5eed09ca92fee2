"""At the end, the newest checkpoint has all files beside it that belong to it without a fault."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.files_left import listings
from harness.judge.facts.saves_beside_usual import parts_missing
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in parts_missing(evidence):
        name, more = each.names[0], len(each.names) - 1
        text = f"beside the checkpoint of step {each.step}, {name} is missing, which is there without a fault"
        also = f" (and {more} more)" if more else ""
        yield breach(f"{text}{also}: a part of the state may no longer be saved", each)


def nothing(evidence: Analysis) -> str:
    found = listings(evidence)
    return found if isinstance(found, str) else ""


GUARANTEE = Guarantee(breaches, explained_by=("saves.whole", "saves.written_when_told"), nothing=nothing)
