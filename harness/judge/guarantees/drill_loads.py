"""What the job saved last can be loaded once more, and is the whole state."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.after_the_run import newest_save, restore_drill
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantee import RUN, Breach, Guarantee, breach


def breaches(evidence: Analysis) -> Iterator[Breach]:
    """Without a drill nothing shows whether a damaged checkpoint can still be loaded."""
    run, drill, good, newest = evidence.run, restore_drill(evidence), evidence.saves.good, newest_save(evidence)
    if drill.failed:
        had = f"though a checkpoint of step {newest}" if newest else "and no checkpoint"
        yield breach(f"the restore drill {drill.failed}, {had} had been committed", drill)
    for fault in run.faults if drill.silent and run.outcome == "completed" and run.finished and good else ():
        if fault.damages and fault.injected is not None and good[-1].last_at <= fault.injected:
            yield breach(f"{fault.id} damaged the last checkpoint, and no other was committed afterwards", drill)
    since = run.epochs[-1].begin if run.epochs else 0
    if drill.done and (less := evidence.saves.store.holds_less(drill.step, since)):
        text = f"the checkpoint of step {drill.step} that the restore drill loaded holds {less.has} tensors"
        yield breach(f"{text}, and the others at least {less.others}", less)


def nothing(evidence: Analysis) -> str:
    return restore_drill(evidence).silent


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), nothing=nothing, switch="last_checkpoint", until_the_end=True)
