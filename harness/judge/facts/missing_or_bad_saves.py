"""Finds saves that were reported as committed but are missing or bad. Each rule here gives its reason in words.

If a report and the store differ, the store is right. A save that the harness merely failed to see is not counted as
missing: each rule about missing saves asks for more evidence. In a store that the harness never saw, no save counts as
missing. If several rules find the same save, the first rule gives the reason.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from harness.judge.facts import tellers
from harness.judge.facts.coordinates import new_layout
from harness.judge.facts.known import By, weakest
from harness.judge.facts.store import Save, Store, last_name
from harness.judge.thresholds import (
    BEGUN_LATE_STEPS,
    HOLLOW_BYTES,
    KEPT_MORE,
    REMOVAL_NS,
    SAVED_EARLY_NS,
    SMALLER,
    SMALLER_STEADY,
    STEADY,
    STEADY_SAVES,
    UNSEEN_FACTOR,
    UNSEEN_LEAST_NS,
    ZEROS_MORE,
)
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import grouped
from harness.timeline.sorted_events import first_strike

T = TypeVar("T")
Pieces = Iterator[tuple[Save, Sequence[tuple[int, str]]]]  # each save with the bytes and digest of each of its parts
OF_TENSORS = ("reference", "dcp")
DIGITS_MAX = 18  # most digits of a size in a log


@dataclass(frozen=True)
class NoSave:
    """A save that was reported as committed but is missing or bad."""

    save: Save
    why: str
    by: By = tellers.SEEN


Found = Iterator[NoSave]


def missing(store: Store, is_watched: Callable[[str], bool]) -> Found:
    """Yields saves that the harness should have seen but did not, and saves that were removed too early."""
    for series, saves in grouped((save.series, save) for save in store.whole).items():
        for rule in (unseen, passed_by, gone, not_kept) if is_watched(series) else ():
            yield from rule(store, saves)


def bad(store: Store) -> Found:
    """Yields saves with a wrong content, size or time, as shown by the store or by the trainer's reports."""
    for rule in (small, empty, hollow, stale, unlike, of_another_step, still_damaged):
        yield from rule(store)
    for rule in (changed, too_early, holds_another, shrunk):
        # A rule that finds a fault-free save does not fit the way in which this trainer saves.
        if store.usual is None or not any(rule(store.usual)):
            for none in rule(store):
                yield replace(none, by=weakest(none, tellers.beside(store.usual, tellers.SAVES_BESIDE)))


# Missing: each rule looks at the saves of one series.


def unseen(store: Store, saves: Sequence[Save]) -> Found:
    """Yields consecutive saves that the harness never saw. Each save must have been the newest save for longer than the
    harness usually needs to see a save. Together, the saves must span several times this delay."""
    late_ns = max(store.late_ns(np.median), (store.usual or store).late_ns(max))

    def is_unseen(pair: tuple[Save, Save]) -> bool:
        save, last = pair[0], pair[1].last_at
        known = save in store.sights or store.went(save) < store.redone(save, last)
        return not known and last - store.shown_since(save, last) > late_ns

    for never_seen, pairs in itertools.groupby(itertools.pairwise(saves), is_unseen):
        row = list(pairs)
        lay = row[-1][1].last_at - store.shown_since(row[0][0], row[0][1].last_at)
        if never_seen and lay >= max(UNSEEN_FACTOR * late_ns, UNSEEN_LEAST_NS):
            yield from (_unseen(store, save, after.last_at) for save, after in row)


def _unseen(store: Store, save: Save, until: int, more: str = "") -> NoSave:
    hidden = store.shown_since(save, until) > save.last_at
    since = " after a fault was over" if hidden else ""
    return NoSave(save, f"the harness never saw it in the store{since}{more}", tellers.unseen(hidden))


def passed_by(store: Store, saves: Sequence[Save]) -> Found:
    """Yields saves that the harness never saw, though the harness saw the next save while both should have been in the
    store. The fault-free run shows how many of the newest saves should be in the store."""
    number, _ = kept(store.usual, saves[-1].series)
    for place, (save, after) in enumerate(itertools.pairwise(saves) if number > 1 else ()):
        until = saves[place + number].at if place + number < len(saves) else store.run.end
        seen = store.sights[after][0].at if after in store.sights else NEVER
        alone = store.redone(save, seen) == NEVER
        known = save in store.sights or (alone and (store.name_of(save) is not None or save.step in store.by_step))
        if not known and seen < until and store.shown_since(save, seen) < seen and (alone or after.path != save.path):
            yield _unseen(store, save, seen, ", and saw the next one there")


def gone(store: Store, saves: Sequence[Save]) -> Found:
    for save, after in itertools.pairwise(saves):
        went = store.went(save)
        early = went < after.at - store.run.uncertainty_ns and after.begun is not None
        if early and not store.is_hidden(save.last_at, went):
            yield NoSave(save, "the harness saw it go away before a newer one was begun")


def not_kept(store: Store, saves: Sequence[Save]) -> Found:
    """Yields saves that are missing after all nodes have ended. The last save must be in the store. The fault-free run
    shows how many of the newest saves must be there. Saves from before the last restart may be missing."""
    last, (number, dated) = saves[-1], kept(store.usual, saves[-1].series)
    there = set(store.left_steps(last.series))
    if max(there, default=0) > last.step:
        return  # a newer save is there that nobody reported
    why = "the harness did not find it in the store when all nodes had ended"
    if lacks(store, last, dated):
        hidden = last not in store.sights and store.is_hidden(last.last_at, NEVER)
        yield NoSave(last, why, tellers.unseen(hidden))
    elif number and store.run.epochs:
        since = {save.step: save for save in saves if save.last_at >= store.run.epochs[-1].begin}
        for step in sorted(there | since.keys())[-number:]:
            if step in since and lacks(store, since[step]) and not store.is_hidden(since[step].last_at, NEVER):
                yield NoSave(since[step], f"{why}: without a fault the newest {number} are there")


def kept(usual: Store | None, series: str) -> tuple[int, bool]:
    """Returns how many of its newest saves the fault-free run has at its end; 0 if this is unknown, or if the run has
    an older save but lacks a newer one. The second result is True if the last save holds its own step number."""
    saves = [save for save in usual.whole if save.series == series] if usual is not None else []
    if usual is None or usual.left is None or not saves:
        return 0, False
    there = {save.step: not lacks(usual, save) for save in saves}
    newest = [there[step] for step in sorted(there)]
    number = sum(newest)
    dated = bool(usual.left_of(saves[-1]).get("step") == saves[-1].step)
    return number if all(newest[len(newest) - number :]) else 0, dated


def lacks(store: Store, save: Save, dated: bool = False) -> bool:
    """Returns True if the save was missing or incomplete after all nodes had ended, and no fault explains this loss. If
    `dated` is True, a save that contains another step number counts as missing. A fault explains the loss of a save
    that was seen before the fault. A fault that was over before the end explains no other loss."""
    excused = save in store.sights or store.shown_since(save, NEVER) > store.run.end
    if store.left is None or (excused and store.is_hidden(save.last_at, NEVER)):
        return False
    left, seen = store.left_of(save), store.undamaged.get(save)
    least = max(1, SMALLER * (seen.size or 0)) if seen else 1
    is_it = not (dated or save in store.named) or left.get("step") in (None, save.step)
    return not (left.get("whole") and left.get("bytes", 0) >= least and is_it)


# Bad: each rule looks at all saves of a store.


def small(store: Store) -> Found:
    """Yields saves far smaller than all fault-free saves (or else, than all saves before the first fault). With fewer
    ranks, saves may be smaller in proportion, unless most saves of the run are as large as fault-free saves. If
    fault-free sizes are nearly equal, a slightly smaller save is too small, unless the layout of ranks differs from the
    fault-free run."""
    relaid = store.usual is not None and new_layout(store.run, [store.usual.run])
    smallest_world = min((epoch.size for epoch in store.run.epochs), default=1)
    for seen, who in ((True, "the harness saw"), (False, "the trainer told")):
        mine, theirs = _sizes(store, seen), _sizes(store.usual, seen)
        before = [(save, size) for save, size in mine if save.last_at < first_strike(store.run.faults)]
        usual = _by_series(theirs)
        known, shrunk = _by_series(before) | usual, smallest_world / max(store.run.largest_world, 1)
        if mine and theirs and np.median([size for _, size in mine]) >= STEADY * min(size for _, size in theirs):
            shrunk = 1.0
        for save, size in mine:
            sizes, smallest = usual.get(save.series, []), min(known.get(save.series, [0]))
            steady = not relaid and shrunk == 1 and len(sizes) >= STEADY_SAVES and smallest >= STEADY * max(sizes)
            why = f"{who} {size:,} bytes, and at least {smallest:,} of each without a fault"
            if size < SMALLER * shrunk * smallest:
                yield NoSave(save, why)
            elif steady and size < SMALLER_STEADY * smallest:
                yield NoSave(save, why, tellers.SAVES_BESIDE)


def _sizes(store: Store | None, seen: bool) -> list[tuple[Save, int]]:
    if store is None:
        return []
    sizes = ((save, each.size) for save, each in store.undamaged.items())
    told = ((save, save.size) for save in store.whole)
    return [(save, size) for save, size in (sizes if seen else told) if size is not None]


def _by_series(sizes: Iterable[tuple[Save, T]]) -> dict[str, list[T]]:
    return grouped((save.series, size) for save, size in sizes)


def empty(store: Store) -> Found:
    """Yields saves with a larger share of zeros than any fault-free save. Such zeros are weights or optimizer state
    that the trainer never filled."""
    usual = store.usual.undamaged.items() if store.usual is not None else ()
    shares = _by_series((save, seen.zeros) for save, seen in usual)
    for save, seen in store.undamaged.items():
        most = max(shares.get(save.series, [1.0]))
        if seen.zeros > most + ZEROS_MORE:
            zeros = f"the harness saw {seen.zeros:.0%} of its tensors' bytes in tensors of zeros"
            yield NoSave(save, f"{zeros}, and at most {most:.0%} without a fault")


def hollow(store: Store) -> Found:
    """Yields saves that have a manifest, but not the data that the manifest lists."""
    for save, seen in store.undamaged.items():
        bare = seen.digests[0] and not seen.digests[1] and seen.told.get("layout") in OF_TENSORS
        if bare and (seen.size or 0) < HOLLOW_BYTES:
            yield NoSave(save, f"the harness saw {seen.size or 0:,} bytes and no tensor in them")


def stale(store: Store) -> Found:
    """Yields saves that hold content of an earlier step, though the optimizer applied updates in between. Such a save
    equals an earlier save, or more of its tensors are old than in fault-free saves. If one fault-free save has far more
    old tensors than all others, this one is ignored, and the evidence is weaker."""
    for kind, who in (("told", "the trainer told"), ("files", "the harness saw"), ("tensors", "the harness saw")):
        for save, step, _, _, by_chance in _of_earlier(store, kind):
            if not by_chance:
                yield NoSave(save, f"{who} in it the content of the checkpoint of step {step}")
    for save, step, share, most, by_chance in _of_earlier(store, "parts"):
        text = f"the harness saw {share:.0%} of its tensors as in the checkpoint of step {step}, and at most {most:.0%}"
        if by_chance:
            yield NoSave(save, f"{text} in most others", tellers.SAVES_BESIDE)
        else:
            yield NoSave(save, f"{text} without a fault")


def _of_earlier(store: Store, kind: str) -> Iterator[tuple[Save, int, float, float, bool]]:
    """Yields saves that hold more content of an earlier step than fault-free saves do. Each result holds the save, the
    earlier step, the share of old content, the largest usual share, and whether one fault-free save was ignored."""
    mine, theirs = _shares(store, kind), _shares(store.usual, kind) if store.usual is not None else {}
    before = {save: kept for save, kept in mine.items() if save.last_at < first_strike(store.run.faults)}
    usual = _by_series((save, share) for save, (share, _) in (theirs if len(theirs) > 1 else before).items())
    for save, (share, step) in mine.items():
        shares = sorted(usual.get(save.series, ()))
        if len(shares) < 2:
            continue
        by_chance = len(shares) > STEADY_SAVES and shares[-1] - shares[-2] > KEPT_MORE
        most = shares[-2] if by_chance else shares[-1]
        if share > most + KEPT_MORE:
            yield save, step, share, most, by_chance


def _shares(store: Store, kind: str) -> Mapping[Save, tuple[float, int]]:
    """Maps each save to the share of content that an earlier save already held, and to the newest step of such saves. A
    save counts as earlier only if the optimizer applied updates between the two saves. The result is the share of old
    bytes or the share of old tensors, whichever is larger."""
    first: dict[tuple[str, str], int] = {}
    found: dict[Save, tuple[float, int]] = {}
    for save, mine in _pieces(store)[kind]:
        sizes = [size for size, _ in mine]
        since = [first.setdefault((save.series, digest), save.step) for _, digest in mine]
        updates = np.searchsorted(store.trained, [*since, save.step], "right")
        old = (updates[:-1] < updates[-1]).tolist()
        if total := sum(sizes):
            share = max(sum(itertools.compress(sizes, old)) / total, sum(old) / len(old))
            found[save] = share, max(itertools.compress(since, old), default=-1)
    return found


def _pieces(store: Store) -> Mapping[str, Pieces]:
    """Maps each kind of digest (reported, of files, of all tensors, of each tensor) to the saves with such a digest."""
    seen = store.undamaged.items()
    return {
        "told": ((save, [(1, save.tensors)]) for save in store.whole if save.tensors),
        "files": ((save, [(1, each.digests[0])]) for save, each in seen if each.digests[0]),
        "tensors": ((save, [(1, each.digests[1])]) for save, each in seen if each.digests[1]),
        "parts": ((save, [(_bytes_of(tensor), tensor) for tensor in each.tensors]) for save, each in seen),
    }


def _bytes_of(tensor: str) -> int:
    """Returns the size from a text like `BYTES DIGEST`, or 0 if the size is not valid."""
    size = tensor.partition(" ")[0]
    return int(size) if size.isascii() and size.isdecimal() and len(size) <= DIGITS_MAX else 0


def unlike(store: Store) -> Found:
    """Yields saves that differ in a value, such as the number of tensors, that all fault-free saves share. The first
    save of each run may differ. Saves are compared only between runs with the same numbers and layouts of ranks."""
    usual, run = store.usual, store.run
    if usual is None or {epoch.size for epoch in run.epochs} != {epoch.size for epoch in usual.run.epochs}:
        return
    kinds = {save.kind for save in usual.whole}
    for save, has, words, due in () if new_layout(run, [usual.run]) else without_what_all_share(store, [usual]):
        if save.kind in kinds:
            yield NoSave(save, f"it has {has} {words}, and {due} without a fault", tellers.SAVES_BESIDE)


def without_what_all_share(store: Store, others: Sequence[Store]) -> Iterator[tuple[Save, str, str, str]]:
    """Yields saves that differ in a value, such as the number of tensors, that all saves of other stores share. The
    first save of each store may differ. Each result holds the save, its value, the value's name, and the shared
    value."""
    for key, told in store.alike.items():
        theirs = [other.alike.get(key, {}) for other in others]
        first = max(min((save.step for save in each), default=0) for each in theirs)
        later = [[has for save, has in each.items() if save.step > first] for each in theirs]
        values = {has for each in later for has in each}
        if len(values) == 1 and min(map(len, later)) >= STEADY_SAVES:
            yield from (
                (save, has, key[1], min(values))
                for save, has in told.items()
                if has not in values and save.step > first
            )


def unlike_usual(store: Store, usual: Store) -> Iterator[Save]:
    """Yields saves in which tensors with more than 10 % of the bytes differ from the fault-free save of the same step.
    Nothing is found unless another save equals its fault-free save in all tensors: contents may differ in each run."""
    theirs = {(save.series, save.step): {*look.tensors} for save, look in usual.undamaged.items()}
    same: dict[Save, float] = {}
    for save, look in store.undamaged.items():
        sizes = {tensor: _bytes_of(tensor) for tensor in look.tensors}
        held = sizes.keys() & theirs.get((save.series, save.step), set())
        if look.tensors and (save.series, save.step) in theirs:
            same[save] = sum(sizes[tensor] for tensor in held) / max(sum(sizes.values()), 1)
    if max(same.values(), default=0) == 1:
        yield from (save for save, share in same.items() if share < 1 - KEPT_MORE)


def of_another_step(store: Store) -> Found:
    """Yields saves that a process began before the process had done the saved step, or long after that step. Fault-free
    saves, and saves before the first fault, show how many steps usually lie in between."""
    mine = _ahead(store)
    usual = [*(_ahead(store.usual).values() if store.usual is not None else ())]
    usual += [ahead for save, ahead in mine.items() if save.last_at < first_strike(store.run.faults)]
    if len(usual) < 2:
        return
    least, most = min(0, *usual), max(usual)
    latest = most + BEGUN_LATE_STEPS * store.run.stride if most == min(usual) else NEVER
    for save, ahead in mine.items():
        if ahead < least or (ahead > latest and save.begun is not None):
            who = f"rank {store.run.processes[save.process].rank}"
            yield NoSave(save, f"{who} began it when it had done step {save.step + ahead}", tellers.SAVES_BESIDE)


def _ahead(store: Store) -> Mapping[Save, int]:
    """Maps each save to the number of steps that the process had done beyond the saved step when the save began. Saves
    of a step that the process did not report are left out."""
    found: dict[Save, int] = {}
    order, places = store.run.rows_by_process
    for process, saves in grouped((save.process, save) for save in store.whole if save.process >= 0).items():
        rows = order[places[process] : places[process + 1]]
        step, end = store.run.steps.step[rows], store.run.steps.end[rows]
        told = set(step.tolist())
        for save, done in zip(saves, np.searchsorted(end, [save.at for save in saves], "right"), strict=True):
            last = int(step[done - 1]) if done else store.run.processes[process].restored_step
            if last is not None and save.step in told:
                found[save] = last - save.step
    return found


def still_damaged(store: Store) -> Found:
    """Yields saves that were reported under the name of a damaged checkpoint, if the harness saw no new checkpoint
    under that name."""
    known = [event for fault in store.run.faults for event in fault.damaged if event.get("checkpoint")]
    damaged = {last_name(str(event["checkpoint"])): event["at"] for event in known}
    patience_ns = max(UNSEEN_FACTOR * store.late_ns(max), REMOVAL_NS)
    for save in store.whole if damaged and not store.run.unseen else ():
        name, until = last_name(save.path), min(store.went(save), store.run.end)
        if damaged.get(name, NEVER) < save.at and until - save.last_at > patience_ns:
            looks = any(seen.at > save.at for seen in store.by_name.get(name, []))
            if not looks and not store.is_hidden(save.last_at, until):
                yield NoSave(save, "a fault had damaged what was there, and the harness saw nothing new in its place")


# Rules for the way in which a trainer saves. A rule that finds a save in the fault-free run, too, is ignored.


def shrunk(store: Store) -> Found:
    """Yields saves that are much smaller after all nodes have ended than when the harness saw them before."""
    for save in {save.path: save for save in store.whole}.values():
        left, looks = store.left_of(save), store.sound.get(save, ())
        now, then = left.get("bytes") or 0, (looks[-1].size or 0) if looks else 0
        spoilt = store.is_hidden(save.last_at, NEVER) or not store.sound_at(store.run.end)(save)
        if left.get("whole") and now < SMALLER_STEADY * then and not spoilt:
            yield NoSave(save, f"the harness saw {then:,} bytes, and {now:,} when all nodes had ended")


def changed(store: Store) -> Found:
    """Yields saves whose tensors changed after the harness had seen the complete save. A save that grows is not yet
    complete."""
    for save in store.named:
        sound = [(each.size, each.digests[1]) for each in store.sound.get(save, ()) if each.size and each.digests[1]]
        if any(size >= later and held != holds for (size, held), (later, holds) in itertools.pairwise(sound)):
            yield NoSave(save, "the harness saw its tensors change after it was whole", tellers.SAVES_BESIDE)


def too_early(store: Store) -> Found:
    """Yields saves that the harness saw complete before any rank had done the saved step. If the job resumed from an
    older save, all that the harness saw before the first step is ignored."""
    run = store.run
    steps, first = np.unique(run.steps.step, return_index=True)  # rows are in order of time
    done = dict(zip(steps.tolist(), run.steps.end[first].tolist(), strict=True))
    resumed = any(run.processes[row].restored_step for epoch in run.epochs[:1] for row in epoch.processes)
    since = int(run.steps.begin.min()) if resumed else -NEVER
    for save in store.named:
        seen = next((each for each in store.looks_at(save) if each.at >= since), None)
        early = done.get(save.step, 0) - run.uncertainty_ns - SAVED_EARLY_NS
        if seen is not None and seen.step == save.step and seen.at < early:
            yield NoSave(save, "the harness saw it before any rank had done its step", tellers.SAVES_BESIDE)


def holds_another(store: Store) -> Found:
    """Yields saves that contain another step number than the process reported."""
    for save in store.named:
        steps = {each.step for each in store.looks_at(save) if each.step is not None}
        if steps and save.step not in steps:
            yield NoSave(save, f"the harness saw that it holds step {min(steps)}")
