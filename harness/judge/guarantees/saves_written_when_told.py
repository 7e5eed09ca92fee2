"""A checkpoint is told as committed once it is written, and not before."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.store import Save
from harness.judge.guarantee import Breach, Guarantee, breach
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped
from harness.timeline.save_events import COMMITTED

EARLY_MIN = 2  # once may be a line that was lost


def breaches(evidence: Analysis) -> Iterator[Breach]:
    """Where a further step was done in between, what is written may be something else."""
    early, steps = _early(evidence), evidence.run.steps
    if len(early) >= EARLY_MIN:
        ends = grouped(zip(steps.process.tolist(), steps.end.tolist(), strict=True))
        sure = [save for save, began in early if first_from(ends.get(save.process, []), save.last_at + 1) >= began]
        often = f"{len(early)} times, first that of step {early[0][0].step}"
        known = sure if len(sure) >= EARLY_MIN else [early[0][0].word]
        yield breach(f"checkpoints were told as committed before they were written ({often})", *known)


def _early(evidence: Analysis) -> list[tuple[Save, int]]:
    """Each with when it was begun to be written."""
    begins = grouped((event["process"], event["at"]) for event in evidence.run.writes)
    saves = grouped((save.process, save) for save in evidence.saves.all if save.begun is not None)
    found = list[tuple[Save, int]]()
    for process, mine in saves.items():
        for save, until in zip(mine, [*(save.at for save in mine[1:]), NEVER], strict=True):
            began = first_from(begins.get(process, []), save.at)
            if save.how == COMMITTED and save.last_at < began < until:
                found.append((save, began))
    return sorted(found, key=lambda each: each[0].at)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), explained_by=("saves.whole",))
