"""Each restart takes a state that was saved, or that another rank holds.

A restore is inconclusive if no save of the restored step was begun and no surviving rank had done this step. A restore
is also inconclusive if the restored save was begun but not committed, and the harness never saw the save. The run fails
if the harness saw that each save of the restored step is missing or bad. The assumption `restores-possible` checks the
path from which a rank restores. The assumption `promised-told` covers trainers that report neither saves nor restores.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    run, saves = evidence.run, evidence.saves
    for restart in evidence.restarts[1:] if run.checkpoints else ():
        until = restart.epoch.begin + run.uncertainty_ns
        for each, step in restart.states:
            if not max(restart.from_a_member, 0) < step < restart.epoch.first:
                continue
            if not saves.of_step(step, until) and not saves.store.saw(step, until):
                why = "no checkpoint of that step was ever started: its state is not known"
                yield breach(f"{each.said}, but {why}", restart)
            elif none := saves.never_sound.get(step):
                yield breach(f"{each.said}, but its checkpoint is none: {none.why}", none)
            elif (begun := saves.only_begun(step, until)) and saves.never_seen(step, begun.at, until):
                why = "that checkpoint was only begun by then, and the harness had not seen it"
                yield breach(f"{each.said}, but {why}", begun)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=Analysis.no_restart)
