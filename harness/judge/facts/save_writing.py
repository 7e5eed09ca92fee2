"""How checkpoints were written: by whom, when, and whether one was there all the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.known import By
from harness.judge.facts.missing_or_bad_saves import Save
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped
from harness.timeline.save_events import COMMITTED

EARLY_MIN = 2  # once may be a line that was lost
BARE_MIN = 2  # once may be the harness's sight, which is that of two looks


@dataclass(frozen=True)
class TwoWriters:
    """Two ranks wrote one file for one step. `times`: how often that came. `at_once`: at the same time, so that whoever
    read it may have found the bytes of both; else one after the other, and not the same bytes."""

    save: Save
    ranks: tuple[int, int]
    times: int
    at_once: bool

    @property
    def by(self) -> By:
        return By.SEEN if self.at_once else By.TOLD


@dataclass(frozen=True)
class ToldEarly:
    """Whoever told that a checkpoint is committed began to write it only then. `step`: of the first one."""

    times: int
    step: int
    by: By


@dataclass(frozen=True)
class OnlyOne:
    """The only checkpoint in the store was removed before the next one was committed. `step`: of the first one."""

    times: int
    step: int
    by: By = By.SEEN


def two_writers(evidence: Analysis) -> Iterator[TwoWriters]:
    saves, processes = evidence.saves, evidence.run.processes
    at_once = [pair for pair in saves.collisions if saves.overlap(*pair)]
    other = [(a, b) for a, b in saves.collisions if a.content and b.content and a.content != b.content]
    for pairs in filter(None, (at_once, other)):
        first, second = sorted(processes[save.process].rank for save in pairs[0])
        yield TwoWriters(pairs[0][0], (first, second), len(pairs), pairs is at_once)


def told_early(evidence: Analysis) -> Iterator[ToldEarly]:
    """Where a further step was done in between, what is written may be something else."""
    early = _early(evidence)
    if len(early) >= EARLY_MIN:
        steps = evidence.run.steps
        ends = grouped(zip(steps.process.tolist(), steps.end.tolist(), strict=True))
        sure = sum(first_from(ends.get(save.process, []), save.last_at + 1) >= began for save, began in early)
        yield ToldEarly(len(early), early[0][0].step, By.SEEN if sure >= EARLY_MIN else By.TOLD)


def _early(evidence: Analysis) -> list[tuple[Save, int]]:
    """Each with when it was begun to be written."""
    begins = grouped((event["process"], event["at"]) for event in evidence.run.writes)
    saves = grouped((save.process, save) for save in evidence.saves.all if save.begun is not None)
    found = list[tuple[Save, int]]()
    for process, mine in saves.items():
        untils = [*(save.at for save in mine[1:]), NEVER]
        for save, until in zip(mine, untils, strict=True):
            began = first_from(begins.get(process, []), save.at)
            if save.how == COMMITTED and save.last_at < began < until:
                found.append((save, began))
    return sorted(found, key=lambda each: each[0].at)


def only_one(evidence: Analysis) -> Iterator[OnlyOne]:
    bare = evidence.saves.store.bare
    if len(bare) >= BARE_MIN:
        yield OnlyOne(len(bare), bare[0].step)
