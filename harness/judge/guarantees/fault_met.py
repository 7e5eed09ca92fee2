"""Each fault that damages a checkpoint hits a checkpoint that a later restart needs."""

import bisect
import itertools

from harness.judge.facts.saves import Damage
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    if not any(evidence.saves.damage.values()):
        return
    states = sorted((each.at, step) for restart in evidence.restarts for each, step in restart.states)
    lowest = list(itertools.accumulate((step for _, step in reversed(states)), min))[::-1]  # from each state on
    passed_over = {item for restart in evidence.restarts for item in restart.passed_over}
    names = {name for item in passed_over for name in item.place.split("/") if name}
    steps = {item.step for item in passed_over if not item.place and item.step is not None}

    def may_have_met(damage: Damage) -> bool:
        later = bisect.bisect_right(states, damage.at, key=lambda state: state[0])
        took = later < len(states) and (damage.step is None or lowest[later] <= damage.step)
        return took or later == len(states) or bool(damage.names & names) or damage.step in steps

    for fault, damaged in evidence.saves.damage.items():
        if damaged and not any(map(may_have_met, damaged)):
            text = f"the checkpoint that `{fault}` damaged was never needed: the job went on from a newer one"
            yield breach(text, *evidence.restarts)


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=Analysis.no_damage)
