"""A rank that reports any restores reports all its restores, and the same holds for the ends of its saves.

A save without a logged end counts as unreported only if its process began another step afterwards. A rank's saves are
not checked if, in the fault-free run, the rank began new steps before its saves ended.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.facts.saves import Newest


def _restores_untold(evidence: Analysis) -> Reasons:
    tellers = {each.rank for restart in evidence.restarts for each, _ in restart.states}
    for restart in evidence.restarts[1:]:
        for each in restart.members:
            untold = each.restored is None or each.restored.step is None
            silent = untold and (each.is_new or restart.own_decision)
            if silent and each.rank in tellers and not each.lost:
                text = f"rank {each.rank} began again with step {each.stretch.first}"
                yield f"{text} and did not report what it restored, though it reports it elsewhere"


def _ends_untold(evidence: Analysis) -> Reasons:
    run, usual = evidence.run, evidence.fault_free_saves
    if usual is None or run.lost:
        return
    mine = [save for save in evidence.saves.open if run.processes[save.process].rank in usual.punctual]
    known = Newest((save.at, save.step, save) for save in mine)
    for restart in evidence.restarts[1:]:
        lowest = min((step for _, step in restart.states), default=0)
        save = known.before(restart.moment, restart.did_not_pass, lowest)
        if save is not None and lowest > 0:
            rank = run.processes[save.process].rank
            text = f"rank {rank} never reported whether its checkpoint of step {save.step} was committed"
            yield f"{text}, and the job restarted from step {lowest} after it"


def _broken(evidence: Analysis) -> Reasons:
    yield from _restores_untold(evidence)
    yield from _ends_untold(evidence)


ASSUMPTION = Assumption(_broken, family="restart")
