"""Faults whose damage no restart met: none took the damaged checkpoint, passed it over, or found none as new."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.saves import Damage


@dataclass(frozen=True)
class NeverMet:
    fault: str
    by: By = By.MISSING


def never_met(evidence: Analysis) -> Iterator[NeverMet]:
    """Only where there was a restart after the damage."""
    if not any(evidence.saves.damage.values()):
        return
    states = sorted((each.at, step) for restart in evidence.restarts for each, step in restart.states)
    lowest = list(itertools.accumulate((step for _, step in reversed(states)), min))[::-1]  # of it and all after it
    passed_over = {item for restart in evidence.restarts for item in restart.passed_over}
    places = {item.place for item in passed_over}
    names = {name for place in places for name in place.split("/") if place}
    steps = {item.step for item in passed_over if not item.place and item.step is not None}

    def may_have_met(damage: Damage) -> bool:
        later = bisect.bisect_right(states, damage.at, key=lambda state: state[0])
        took = later < len(states) and (damage.step is None or lowest[later] <= damage.step)
        return took or later == len(states) or bool(damage.names & names) or damage.step in steps

    for fault, damaged in evidence.saves.damage.items():
        if damaged and not any(may_have_met(damage) for damage in damaged):
            yield NeverMet(fault)
