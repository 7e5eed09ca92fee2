"""Each restart takes a state that was saved, or that another rank holds."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restored_states import no_restart, of_no_save
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for each in of_no_save(evidence):
        if each.none is not None:
            why = f"its checkpoint is none: {each.none.why}"
        elif each.begun:
            why = "that checkpoint was only begun by then, and the harness had not seen it"
        else:
            why = "no checkpoint of that step was ever started: its state is not known"
        yield breach(f"{each.restore.said}, but {why}", each)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=no_restart)
