"""Each reported restore is possible: it loads a save of the reported step that the rank did not report as skipped.

A rank can restore only a step that the job began with, reached or saved.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.facts.restarts import without_a_step
from harness.timeline.joined_steps import PEER
from harness.timeline.lineage import NEVER


def _broken(evidence: Analysis) -> Reasons:
    run, saves = evidence.run, evidence.saves
    all_seen = saves.seen_steps is not None and not run.lost and not run.torn
    unused = list(without_a_step(run, saves))  # as in a restore drill, which ends before the first step
    for each in (*(restore for restart in evidence.restarts for restore in restart.restores), *unused):
        if each.other_step is not None:
            yield f"{each.said}, but from {each.source}, which is of step {each.other_step}"
        if each.elsewhere and not each.content:
            yield f"{each.said} from {each.source}, but this run saved it as {each.elsewhere}"
        if each.source and any(item.place == each.source for item in each.passed_over):
            yield f"rank {each.rank} said it passed {each.source} over, and that it restored it"
        for item in each.passed_over if all_seen and each.went_on != NEVER else ():
            if not any(item.is_save(save) for save in saves.all):
                which = item.place or f"a checkpoint of step {item.step}"
                yield f"rank {each.rank} said it passed over {which}, and nobody ever began or saw such a one"
    begun = {step for restart in evidence.restarts[:1] for _, step in restart.states}
    for each in unused if run.checkpoints and run.reached_step else ():
        step = each.step or 0
        known = step <= run.reached_step or step in begun
        if not (known or saves.of_step(step, NEVER) or saves.store.saw(step, NEVER)):
            yield f"{each.said}, but the job reached step {run.reached_step}, and nobody ever began or saw such a save"
    for restart in evidence.restarts[1:]:
        there = max(restart.from_a_member, 0) + run.stride
        for each in (each for each, step in restart.states if each.source == PEER and step >= there):
            yield f"{each.said} from a peer, but no peer that had done it was there"


ASSUMPTION = Assumption(_broken, family="restart")
