"""A rank that tells what it restored tells it in each of its lives."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.assumption import Assumption
from harness.judge.facts.analysis import Analysis


def _broken(evidence: Analysis) -> Iterator[str]:
    tellers = {each.rank for restart in evidence.restarts for each, _ in restart.states}
    for restart in evidence.restarts[1:]:
        for each in restart.members:
            untold = each.restored is None or each.restored.step is None
            silent = untold and (each.is_new or restart.own_decision)
            if silent and each.rank in tellers and not each.lost:
                text = (
                    f"rank {each.rank} began again with step {each.stretch.first} and did not report what it restored"
                )
                yield f"{text}, though it reports it elsewhere"


ASSUMPTION = Assumption(_broken, family="restart")
