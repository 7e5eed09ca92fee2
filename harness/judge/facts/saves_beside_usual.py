"""How checkpoints differ from those of the fault-free run: in their size, their tensors, their files, their number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.files_left import listings
from harness.judge.facts.known import By
from harness.judge.facts.missing_or_bad_saves import STEADY_SAVES, Store
from harness.judge.facts.saves import Saves
from harness.timeline.timeline import Timeline

K = TypeVar("K", bound=tuple[object, ...])
SIZES_MIN = 3  # saves after a restart, from which on it shows that their size stays
OF_TENSORS = ("tensors", "bytes of tensors")
PILED_UP = 2  # checkpoints that may be left for each fault
SIZE_FACTOR = 8  # so much more do sizes spread without a fault


@dataclass(frozen=True)
class OtherTensors:
    """A checkpoint holds other tensors than in the fault-free run, though all losses are the same: `rank` told it of
    its own, or the harness saw it. `path`: of a file that does so at the end."""

    step: int = -1
    rank: int | None = None
    path: str = ""
    by: By = By.TOLD


@dataclass(frozen=True)
class OtherAmount:
    """A checkpoint of a world that changed its size holds `has` of `what`, and in all fault-free runs `usually`."""

    step: int
    what: str
    has: str
    usually: str
    by: By = By.TOLD


@dataclass(frozen=True)
class SameSize:
    """Checkpoints after this step no longer grow: from so many bytes to so many. In the fault-free run they do."""

    after: int
    sizes: tuple[int, int]
    usual: tuple[int, int]
    by: By = By.MISSING


@dataclass(frozen=True)
class PartsMissing:
    """Files with the number of the newest checkpoint, which are there without a fault."""

    step: int
    names: Sequence[str]
    by: By = By.MISSING


@dataclass(frozen=True)
class PiledUp:
    """So many checkpoints were left at the end, and `usually` without a fault."""

    count: int
    usually: int
    by: By = By.MISSING


def other_tensors(evidence: Analysis) -> Iterator[OtherTensors]:
    """Checkpoints after a restart show a part of the state that was not restored and that no loss depends on: averaged
    weights, running statistics. Judged where all losses are the fault-free run's, bit for bit, and where the
    checkpoints before the first restart agree."""
    compared, usual = evidence.comparison, evidence.fault_free_saves
    if usual is None or compared is None or not compared.identical or len(evidence.run.epochs) < 2:
        return
    saves, restart = evidence.saves, evidence.run.epochs[1].begin
    for rank, step, _ in _differ(saves.last_tensors, usual.last_tensors, restart):
        yield OtherTensors(step, rank)
    for _, step in _differ(saves.store.tensors, usual.store.tensors, restart):
        yield OtherTensors(step)
    for path in _other_at_the_end(evidence, usual.store, restart):
        yield OtherTensors(path=path)
    mine, theirs = saves.store.exports, usual.store.exports
    for path in sorted(mine.keys() & theirs.keys()):  # they hold tensors of the last checkpoint without a fault
        if theirs[path] and not mine[path]:
            yield OtherTensors(path=path)


def _differ(mine: Mapping[K, tuple[int, str]], theirs: Mapping[K, tuple[int, str]], since: int) -> list[K]:
    """The saves that differ, in order, if the first ones do not and all that do are later than that."""
    common = sorted((mine[key][0], key) for key in mine.keys() & theirs.keys())
    differ = [(at, key) for at, key in common if mine[key][1] != theirs[key][1]]
    early = bool(common) and common[0][0] < since
    return [key for _, key in differ] if early and differ and differ[0][0] >= since else []


def _other_at_the_end(evidence: Analysis, usual: Store, restart: int) -> Iterator[str]:
    """Files that each save writes anew under one name, if they were the same before the first restart."""
    mine, theirs = evidence.saves.store.of_no_step, usual.of_no_step
    for path in sorted(mine.keys() & theirs.keys()):
        first, last = ((mine[path][place], theirs[path][place]) for place in (0, -1))
        alike = first[0].at < restart and first[0].digests[1] == first[1].digests[1]
        final = last[0].at > evidence.saves.store.ended and last[1].at > usual.ended
        if alike and final and last[0].digests[1] != last[1].digests[1]:
            yield path


def other_amount(evidence: Analysis) -> Iterator[OtherAmount]:
    """In a world that changed its size: what all saves of fault-free runs of several sizes have alike, but for the
    first of each. Where the run has one size, the store is held against the fault-free run alone."""
    run, usual = evidence.run, evidence.fault_free
    others = [each for each in evidence.calibration if not evidence.flaw(each)]
    if usual is None or len(_sizes(run)) < 2 or all(_sizes(each) == _sizes(usual) for each in others):
        return
    without = [Saves(each).store.alike for each in (usual, *others)]
    for key, told in evidence.saves.store.alike.items():
        known = [{save.step: what for save, what in alike.get(key, {}).items()} for alike in without]
        first = max((min(each, default=0) for each in known), default=0)
        values = {what for each in known for step, what in each.items() if step > first}
        if key[1] not in OF_TENSORS or len(values) != 1 or any(len(each) <= STEADY_SAVES for each in known):
            continue
        [usually] = values
        for save, has in told.items():
            if has != usually and save.step > first:
                yield OtherAmount(save.step, key[1], has, usually)


def _sizes(run: Timeline) -> set[int]:
    return {int(epoch.size) for epoch in run.epochs}


def same_size(evidence: Analysis) -> Iterator[SameSize]:
    """Checkpoints that grew until the restart, and without a fault grow after it, too, may all hold one state."""
    run, usual = evidence.run, evidence.fault_free_saves
    if usual is None or len(run.epochs) < 2 or len(_sizes(run)) > 1:
        return
    theirs = {(save.series, save.step): usual.store.size_of(save) for save in usual.whole}
    mine = [save for save in evidence.saves.whole if save.last_at >= run.epochs[-1].begin]
    both = ((evidence.saves.store.size_of(save), theirs.get((save.series, save.step))) for save in mine)
    common = [(size, usual_size) for size, usual_size in both if size is not None and usual_size is not None]
    if len(common) < SIZES_MIN:
        return
    (least, most), (low, high) = ((min(sizes), max(sizes)) for sizes in zip(*common, strict=True))
    if high - low > SIZE_FACTOR * max(most - least, SIZE_FACTOR):
        yield SameSize(run.epochs[-1].first - 1, (least, most), (low, high))


def parts_missing(evidence: Analysis) -> Iterator[PartsMissing]:
    """Files that without a fault carry the number of the newest checkpoint, as the state of each rank does."""
    usual, found = evidence.fault_free_saves, listings(evidence)
    if usual is None or isinstance(found, str):
        return
    (due, there), newest = found, max(evidence.saves.store.left_steps, default=None)
    if newest is None or newest != max(usual.store.left_steps, default=None):
        return
    written = evidence.saves.store.written(newest)
    if missing := [name for name in sorted(due - there) if not written.isdisjoint(re.findall(r"\d+", name))]:
        yield PartsMissing(newest, missing)


def left_counts(evidence: Analysis) -> tuple[int, int] | str:
    """How many checkpoints there were at the end, and how many without a fault; or why they cannot be compared."""
    run, usual = evidence.run, evidence.fault_free
    if run.beside.job_goes_on:
        return "the job goes on after this rehearsal"
    if usual is None:
        return "there is no fault-free run to compare with"
    known = 0 if usual.left is None else int(usual.left.get("count") or 0)
    if run.left is None or not known:
        return "the log does not tell how many checkpoints there were at the end, or how many without a fault"
    return int(run.left.get("count") or 0), known


def piled_up(evidence: Analysis) -> Iterator[PiledUp]:
    """Many more checkpoints at the end than without a fault: old ones are no longer removed, until the disk is full.
    Each restart may leave a half one, and each fault one that was saved over it."""
    run, counts = evidence.run, left_counts(evidence)
    may_be_left = max(0, len(run.epochs) - 1) + PILED_UP * len(run.faults)
    if not isinstance(counts, str) and counts[0] > counts[1] + may_be_left:
        yield PiledUp(*counts)
