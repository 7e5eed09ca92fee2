"""The last save of the job can be loaded once more, and is the whole state.

After the run, the harness starts the job's command once more on a copy of the saves (the restore drill). The run fails
if the restore drill starts from scratch or ends before restoring anything, though a checkpoint was committed. The run
is inconclusive if the save that the restore drill loaded holds fewer tensors than each other save. Without a restore
drill, the run is inconclusive if a fault damaged the last save.
"""

from harness.judge.facts import tellers
from harness.judge.facts.after_the_run import newest_save, restore_drill
from harness.judge.guarantee import RUN, Analysis, Breaches, Guarantee, after, breach


def breaches(evidence: Analysis) -> Breaches:
    run, drill, good, newest = evidence.run, restore_drill(evidence), evidence.saves.good, newest_save(evidence)
    if drill.failed and newest:
        text = f"the restore drill {drill.failed}, though a checkpoint of step {newest} had been committed"
        yield breach(text, grounds=after(drill.waited))
    elif drill.failed:
        yield breach(f"the restore drill {drill.failed}, and no checkpoint had been committed", tellers.NOTHING_SAVED)
    for fault in run.faults if drill.silent and run.outcome == "completed" and run.finished and good else ():
        if fault.damages and fault.injected is not None and good[-1].last_at <= fault.injected:
            text = f"{fault.id} damaged the last checkpoint, and no other was committed afterwards"
            yield breach(text, tellers.NO_DRILL)
    since = run.epochs[-1].begin if run.epochs else 0
    if drill.done and (less := evidence.saves.store.holds_less(drill.step, since)):
        text = f"the checkpoint of step {drill.step} that the restore drill loaded holds {less[0]} tensors"
        yield breach(f"{text}, and the others at least {less[1]}", tellers.SAVES_BESIDE)


def nothing(evidence: Analysis) -> str:
    return restore_drill(evidence).silent


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=nothing, switch="last_checkpoint", until_the_end=True)
