"""What was told as a checkpoint is one: whole, of its step, and where the harness looks for it.

Which one is none is decided in `harness.judge.facts.missing_or_bad_saves`; here it becomes a claim. A save that is none
counts nowhere: not as the last one, not in the rhythm, and not as what a restart should have taken.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from harness.judge.facts import by_time
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.files_left import listings
from harness.judge.facts.missing_or_bad_saves import STEADY_SAVES, Store
from harness.judge.facts.reported import blindness
from harness.judge.facts.save_writing import only_one, told_early
from harness.judge.facts.saves import Saves
from harness.judge.score import Score, ScoreResult
from harness.judge.verdict import Claim, Code, unknown
from harness.timeline.timeline import Timeline

K = TypeVar("K", bound=tuple[object, ...])
SIZES_MIN = 3  # saves after a restart, from which on it shows that their size stays
OF_TENSORS = ("tensors", "bytes of tensors")
PILED_UP = 2  # checkpoints that may be left for each fault
SIZE_FACTOR = 8  # so much more do sizes spread without a fault


class Told(Score):
    name = "saves"
    order = 3
    by_steps = False

    def score(self, evidence: Analysis, bounds: object) -> ScoreResult:
        claims = () if blindness(evidence.run, evidence.fault_free) else _claims(evidence)
        hidden = [("checkpoints in their store", why) for why in evidence.run.unseen[:1]]
        return ScoreResult({}, reasons=list(claims), not_judged=hidden)


def _claims(evidence: Analysis) -> Iterator[Claim]:
    """One example of each kind."""
    if not (evidence.saves.none or any(told_early(evidence)) or any(only_one(evidence))):
        yield from _untold(evidence)
        yield from _other_tensors(evidence)
        yield from _same_size(evidence)
        yield from _piled_up(evidence)
        yield from _beside_missing(evidence)
        yield from _of_another_size(evidence)


def _beside_missing(evidence: Analysis) -> Iterator[Claim]:
    """Files that without a fault carry the number of the newest checkpoint, as the state of each rank does."""
    usual, found = evidence.fault_free_saves, listings(evidence)
    if usual is None or isinstance(found, str):
        return
    (due, there), newest = found, max(evidence.saves.store.left_steps, default=None)
    if newest is None or newest != max(usual.store.left_steps, default=None):
        return
    written = evidence.saves.store.written(newest)
    missing = [name for name in sorted(due - there) if not written.isdisjoint(re.findall(r"\d+", name))]
    for name in missing[:1]:
        text = f"beside the checkpoint of step {newest}, {name} is missing, which is there without a fault"
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        yield unknown(Code.SAVE_BESIDE_MISSING, f"{text}{more}: a part of the state may no longer be saved")


def _of_another_size(evidence: Analysis) -> Iterator[Claim]:
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
        for save in [save for save, what in told.items() if what != usually and save.step > first][:1]:
            text = f"the checkpoint of step {save.step} has {told[save]} {key[1]}, and {usually} without a fault"
            yield unknown(Code.SAVE_OTHER_TENSORS, f"{text}, on whatever number of ranks")


def _sizes(run: Timeline) -> set[int]:
    return {int(epoch.size) for epoch in run.epochs}


def _untold(evidence: Analysis) -> Iterator[Claim]:
    """What appears in the store while nothing disturbs the job, and without a word of it: somebody else saves there."""
    run, saves, usual = evidence.run, evidence.saves, evidence.fault_free_saves
    told, told_all = {save.step for save in saves.all}, not (run.lost or run.torn) and bool(saves.store.sights)
    if usual is not None:  # of those that nobody tells without a fault, either, nothing is expected
        told |= {save.step for save in usual.seen} - {save.step for save in usual.all}
    there = next((each.restored_step or 0 for each in run.processes if each.restored is not None), 0)  # before the job
    new = (save for save in saves.seen if save.step not in told and (save.step or 0) > there and save.at > run.begin)
    untold = [save for save in new if not by_time.touches(evidence.disturbed, save.at, save.at)] if told_all else []
    if untold:
        text = f"the harness saw a checkpoint of step {untold[0].step} in the store, and no rank told of one"
        yield unknown(Code.SAVE_UNTOLD, text)


def _other_tensors(evidence: Analysis) -> Iterator[Claim]:
    """Checkpoints after a restart show a part of the state that was not restored and that no loss depends on: averaged
    weights, running statistics. Judged where all losses are the fault-free run's, bit for bit, and where the
    checkpoints before the first restart agree."""
    compared, usual = evidence.comparison, evidence.fault_free_saves
    if usual is None or compared is None or not compared.identical or len(evidence.run.epochs) < 2:
        return
    saves, restart = evidence.saves, evidence.run.epochs[1].begin
    told = _differ(saves.last_tensors, usual.last_tensors, restart)
    seen = _differ(saves.store.tensors, usual.store.tensors, restart)
    found = [f"rank {rank} saved other tensors at step {step}" for rank, step, _ in told]
    found += [f"the checkpoint of step {step} holds other tensors" for _, step in seen]
    ends = itertools.chain(_other_at_the_end(evidence, usual.store, restart), _other_exports(evidence, usual.store))
    found += [f"at the end {path} holds other tensors" for path in ends]
    for text in found[:1]:
        why = "though all losses are the same: some state may not have been restored"
        text = f"{text} than in the fault-free run, {why} (averaged weights, running statistics)"
        yield unknown(Code.SAVE_OTHER_TENSORS, text)


def _other_at_the_end(evidence: Analysis, usual: Store, restart: int) -> Iterator[str]:
    """Files that each save writes anew under one name, if they were the same before the first restart."""
    mine, theirs = evidence.saves.store.of_no_step, usual.of_no_step
    for path in sorted(mine.keys() & theirs.keys()):
        first, last = ((mine[path][place], theirs[path][place]) for place in (0, -1))
        alike = first[0].at < restart and first[0].digests[1] == first[1].digests[1]
        final = last[0].at > evidence.saves.store.ended and last[1].at > usual.ended
        if alike and final and last[0].digests[1] != last[1].digests[1]:
            yield path


def _other_exports(evidence: Analysis, usual: Store) -> Iterator[str]:
    """Files beside the checkpoints that without a fault hold tensors of the last one, and not in this run."""
    mine, theirs = evidence.saves.store.exports, usual.exports
    return (name for name in sorted(mine.keys() & theirs.keys()) if theirs[name] and not mine[name])


def _differ(mine: Mapping[K, tuple[int, str]], theirs: Mapping[K, tuple[int, str]], since: int) -> list[K]:
    """The saves that differ, in order, if the first ones do not and all that do are later than that."""
    common = sorted((mine[key][0], key) for key in mine.keys() & theirs.keys())
    differ = [(at, key) for at, key in common if mine[key][1] != theirs[key][1]]
    early = bool(common) and common[0][0] < since
    return [key for _, key in differ] if early and differ and differ[0][0] >= since else []


def _same_size(evidence: Analysis) -> Iterator[Claim]:
    """Checkpoints that grew until the restart, and without a fault grow after it, too, may all hold one state."""
    run, usual = evidence.run, evidence.fault_free_saves
    if usual is None or len(run.epochs) < 2 or len({epoch.size for epoch in run.epochs}) > 1:
        return
    theirs = {(save.series, save.step): usual.store.size_of(save) for save in usual.whole}
    mine = [save for save in evidence.saves.whole if save.last_at >= run.epochs[-1].begin]
    both = ((evidence.saves.store.size_of(save), theirs.get((save.series, save.step))) for save in mine)
    common = [(size, usual_size) for size, usual_size in both if size is not None and usual_size is not None]
    if len(common) < SIZES_MIN:
        return
    (least, most), (low, high) = ((min(sizes), max(sizes)) for sizes in zip(*common, strict=True))
    if high - low > SIZE_FACTOR * max(most - least, SIZE_FACTOR):
        text = f"the checkpoints after step {run.epochs[-1].first - 1} have {least:,} to {most:,} bytes"
        text += f", in the fault-free run {low:,} to {high:,}: they may hold one state"
        yield unknown(Code.SAVE_SAME_SIZE, text)


def _piled_up(evidence: Analysis) -> Iterator[Claim]:
    """Many more checkpoints at the end than without a fault: old ones are no longer removed, until the disk is full.
    Each restart may leave a half one, and each fault one that was saved over it."""
    run, usual = evidence.run, evidence.fault_free
    if run.left is None or usual is None or usual.left is None or run.beside.job_goes_on:
        return
    count, known = int(run.left.get("count") or 0), int(usual.left.get("count") or 0)
    if known and count > known + max(0, len(run.epochs) - 1) + PILED_UP * len(run.faults):
        text = f"the store held {count} checkpoints at the end, and {known} without a fault"
        yield unknown(Code.SAVE_PILED_UP, f"{text}: old ones are no longer removed")


SCORES = (Told(),)
