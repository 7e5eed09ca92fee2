"""Each restart takes the newest sound checkpoint of its series. What it passes over is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restart_choices import FurtherBack, Older, choices, further_back
from harness.judge.facts.restored_states import no_restart
from harness.judge.guarantee import Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    older, passed_over = choices(evidence)
    for each in older:
        yield breach(_older(each), each)
    for sound in passed_over:
        seen = "; the harness had seen it whole" if sound.seen else ""
        text = f"rank {sound.rank} passed over the checkpoint of step {sound.save.step}, which nothing had damaged"
        yield breach(f"{text}{seen}", sound)
    for back in further_back(evidence):
        yield breach(further(back), back)


def further(back: FurtherBack) -> str:
    planned = f", though it should save every {back.every} steps" if back.every is not None else ""
    text = f"the job restarted at step {back.first} and lost {back.lost} steps{planned}"
    return f"{text}; it reported no saves and no restores"


def _older(each: Older) -> str:
    newer = f"a checkpoint of step {each.newer.step} had been committed"
    newer = newer if each.told else f"it had saved step {each.newer.step}, as far as is known"
    if each.step is None:
        return f"rank {each.rank} began with step {each.went_on} and did not report what it restored, though {newer}"
    why = "and skipped all saved checkpoints" if not each.step else "and named no newer one that is damaged"
    why = why if each.named else "and gave no reason"
    return f"rank {each.rank} resumed from step {each.step} {why}, though {newer}"


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=no_restart)
