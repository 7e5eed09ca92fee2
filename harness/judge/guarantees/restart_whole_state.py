"""Each restart takes the whole state: the optimizer's as well as the model's."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.deaths import listed
from harness.judge.facts.restored_states import model_alone, no_state
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in model_alone(evidence):
        who, their = ("ranks", "their") if len(each.ranks) > 1 else ("rank", "its")
        text = f"{who} {listed([*map(str, each.ranks)])} restored {their} model, and nothing shows that {their}"
        yield breach(f"{text} optimizer's state was restored", each)


GUARANTEE = Guarantee(breaches, rests_on=("restores",), nothing=no_state)
