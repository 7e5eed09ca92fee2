"""Finds saves that the log reports as committed although they are bad or missing from the checkpoint store.

If the log and the checkpoint store contradict each other, the store counts as right. A save that the harness never saw
counts as missing only with further evidence, as the harness may overlook saves. If the harness could not see the
checkpoint store, no save counts as missing. If several rules (functions of this file) find the same save, the first
rule gives the reason.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from harness.evidence.coordinates import new_layout
from harness.judge import thresholds as limits
from harness.judge.facts import tellers
from harness.judge.facts.known import By, weakest
from harness.judge.facts.store import Save, Store, last_name
from harness.timeline.lookups import NEVER, grouped
from harness.timeline.sorted_events import first_strike

T = TypeVar("T")
Pieces = Iterator[tuple[Save, Sequence[tuple[int, str]]]]  # each save with the bytes and digest of each of its parts
OF_TENSORS = ("reference", "dcp")
DIGITS_MAX = 18  # most digits of a size in a log


@dataclass(frozen=True)
class NoSave:
    """A save that the log reports as committed although it is missing or bad. The text `why` holds the reason."""

    save: Save
    why: str
    by: By = tellers.SEEN


Found = Iterator[NoSave]


def missing(store: Store, is_watched: Callable[[str], bool]) -> Found:
    """Yields committed saves that were missing from the store, or were removed from the store too early."""
    for series, saves in grouped((save.series, save) for save in store.whole).items():
        for rule in (unseen, passed_by, gone, not_kept) if is_watched(series) else ():
            yield from rule(store, saves)


def bad(store: Store) -> Found:
    """Yields saves whose content, size or time is wrong according to the checkpoint store or the trainer's log."""
    for rule in (small, empty, hollow, stale, unlike, of_another_step, still_damaged):
        yield from rule(store)
    for rule in (changed, too_early, holds_another, shrunk):
        # A rule that finds a fault-free save does not fit the way in which this trainer saves.
        if store.usual is None or not any(rule(store.usual)):
            for none in rule(store):
                yield replace(none, by=weakest(none, tellers.beside(store.usual, tellers.SAVES_BESIDE)))


# Missing: each rule looks at the saves of one series.


def unseen(store: Store, saves: Sequence[Save]) -> Found:
    """Yields consecutive saves that the harness never saw. Each yielded save was the newest save for longer than the
    harness usually needs to see a save. Together, the yielded saves were the newest saves for several times the
    harness's usual delay."""
    late_ns = max(store.late_ns(np.median), (store.usual or store).late_ns(max))

    def is_unseen(pair: tuple[Save, Save]) -> bool:
        save, last = pair[0], pair[1].last_at
        known = save in store.sights or store.went(save) < store.redone(save, last)
        return not known and last - store.shown_since(save, last) > late_ns

    for never_seen, pairs in itertools.groupby(itertools.pairwise(saves), is_unseen):
        row = list(pairs)
        lay = row[-1][1].last_at - store.shown_since(row[0][0], row[0][1].last_at)
        if never_seen and lay >= max(limits.UNSEEN_FACTOR * late_ns, limits.UNSEEN_LEAST_NS):
            yield from (_unseen(store, save, after.last_at) for save, after in row)


def _unseen(store: Store, save: Save, until: int, more: str = "") -> NoSave:
    hidden = store.shown_since(save, until) > save.last_at
    since = " after a fault was over" if hidden else ""
    return NoSave(save, f"the harness never saw it in the store{since}{more}", tellers.unseen(hidden))


def passed_by(store: Store, saves: Sequence[Save]) -> Found:
    """Yields saves that the harness never saw, though it saw the next save at a time when both should be stored."""
    number, _ = kept(store, saves[-1].series)
    for place, (save, after) in enumerate(itertools.pairwise(saves) if number > 1 else ()):
        until = saves[place + number].at if place + number < len(saves) else store.run.end
        seen = store.sights[after][0].at if after in store.sights else NEVER
        alone = store.redone(save, seen) == NEVER
        known = save in store.sights or (alone and (store.name_of(save) is not None or save.step in store.by_step))
        if not known and seen < until and store.shown_since(save, seen) < seen and (alone or after.path != save.path):
            yield _unseen(store, save, seen, ", and saw the next one there")


def gone(store: Store, saves: Sequence[Save]) -> Found:
    """Yields saves that were removed too early. A job may remove a save that a fault damaged."""
    for save, after in itertools.pairwise(saves):
        went = store.went(save)
        early = went < after.at - store.run.uncertainty_ns and after.begun is not None
        if early and store.sound_at(went)(save) and not store.is_hidden(save.last_at, went):
            yield NoSave(save, "the harness saw it go away before a newer one was begun")


def not_kept(store: Store, saves: Sequence[Save]) -> Found:
    """Yields saves that the store lacks at the end: the last save, or those that the fault-free run would have kept."""
    last, (number, dated) = saves[-1], kept(store, saves[-1].series)
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


def kept(store: Store, series: str) -> tuple[int, bool]:
    """Returns how many saves the fault-free run kept to its end, or 0 if this number is unknown, may have changed, or
    does not count the newest saves. The second result is True if the fault-free run's last save contains its own step
    number."""
    usual = store.usual if store.run.work_changed_at == NEVER else None
    saves = [save for save in usual.whole if save.series == series] if usual is not None else []
    if usual is None or usual.left is None or not saves:
        return 0, False
    there = {save.step: not lacks(usual, save) for save in saves}
    newest = [there[step] for step in sorted(there)]
    number = sum(newest)
    dated = bool(usual.left_of(saves[-1]).get("step") == saves[-1].step)
    return number if all(newest[len(newest) - number :]) else 0, dated


def lacks(store: Store, save: Save, dated: bool = False) -> bool:
    """Returns True if, at the end, a save is missing, incomplete or (with `dated`) of another step, and no fault
    explains this. A later fault explains a missing save if the harness had seen the save before, or if the fault hid
    saves to the end."""
    excused = save in store.sights or store.shown_since(save, NEVER) > store.run.end
    if store.left is None or (excused and store.is_hidden(save.last_at, NEVER)):
        return False
    left, seen = store.left_of(save), store.undamaged.get(save)
    least = max(1, limits.SMALLER * (seen.size or 0)) if seen else 1
    is_it = not (dated or save in store.named) or left.get("step") in (None, save.step)
    return not (left.get("whole") and left.get("bytes", 0) >= least and is_it)


# Bad: each rule looks at all saves of a store.


def small(store: Store) -> Found:
    """Yields saves that are far smaller than all fault-free saves. Without fault-free saves, saves are compared with
    the saves before the first fault. If the run lost ranks, saves may be smaller in proportion to the ranks, unless
    most saves have fault-free size. If fault-free saves are of nearly equal size, a save that is 10 % smaller is bad,
    unless ranks split the model differently."""
    relaid = store.usual is not None and new_layout(store.run, [store.usual.run])
    smallest_world, changed = min((epoch.size for epoch in store.run.epochs), default=1), store.run.work_changed_at
    for seen, who in ((True, "the harness saw"), (False, "the trainer told")):
        mine, theirs = _sizes(store, seen), _sizes(store.usual, seen)
        before = [(save, size) for save, size in mine if save.last_at < first_strike(store.run.faults)]
        usual = _by_series(theirs)
        known, shrunk = _by_series(before) | usual, smallest_world / max(store.run.largest_world, 1)
        if mine and theirs and np.median([size for _, size in mine]) >= limits.STEADY * min(size for _, size in theirs):
            shrunk = 1.0
        of_equal_sizes = shrunk == 1 and not relaid
        for save, size in mine:
            sizes, smallest = usual.get(save.series, []), min(known.get(save.series, [0]))
            told = of_equal_sizes and len(sizes) >= limits.STEADY_SAVES
            steady = told and smallest >= limits.STEADY * max(sizes)
            why = f"{who} {size:,} bytes, and at least {smallest:,} of each without a fault"
            if size < limits.SMALLER * shrunk * smallest:
                yield NoSave(save, why, tellers.before_change(save.at, changed))
            elif steady and save.at < changed and size < limits.SMALLER_STEADY * smallest:
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
    """Yields saves with more all-zero tensors than any fault-free save, as if state had never been filled in."""
    usual = store.usual.undamaged.items() if store.usual is not None else ()
    shares = _by_series((save, seen.zeros) for save, seen in usual)
    for save, seen in store.undamaged.items():
        most = max(shares.get(save.series, [1.0]))
        if seen.zeros > most + limits.ZEROS_MORE:
            zeros = f"the harness saw {seen.zeros:.0%} of its tensors' bytes in tensors of zeros"
            zeros, at = f"{zeros}, and at most {most:.0%} without a fault", save.at if seen.zeros < 1 else -NEVER
            yield NoSave(save, zeros, tellers.before_change(at, store.run.work_changed_at))


def hollow(store: Store) -> Found:
    """Yields saves that hold no tensor, although their file format stores tensors, and are smaller than any model."""
    for save, seen in store.undamaged.items():
        bare = seen.digests[0] and not seen.digests[1] and seen.told.get("layout") in OF_TENSORS
        if bare and (seen.size or 0) < limits.HOLLOW_BYTES:
            yield NoSave(save, f"the harness saw {seen.size or 0:,} bytes and no tensor in them")


def stale(store: Store) -> Found:
    """Yields saves that repeat an earlier save although the optimizer applied updates in between. A save is yielded if
    it repeats all content, or more tensors than fault-free saves repeat. One outlier among fault-free saves is ignored,
    but weakens the evidence for a bad save."""
    for kind, who in (("told", "the trainer told"), ("files", "the harness saw"), ("tensors", "the harness saw")):
        for save, step, _, _, by_chance in _of_earlier(store, kind):
            if not by_chance:
                yield NoSave(save, f"{who} in it the content of the checkpoint of step {step}")
    for save, step, share, most, by_chance in _of_earlier(store, "parts"):
        text = f"the harness saw {share:.0%} of its tensors as in the checkpoint of step {step}, and at most {most:.0%}"
        if by_chance:
            yield NoSave(save, f"{text} in most others", tellers.SAVES_BESIDE)
        else:
            yield NoSave(save, f"{text} without a fault", tellers.before_change(save.at, store.run.work_changed_at))


def _of_earlier(store: Store, kind: str) -> Iterator[tuple[Save, int, float, float, bool]]:
    """Yields tuples (save, step of the earlier save, repeated share, usual share, True if a fault-free outlier was
    ignored)."""
    mine, theirs = _shares(store, kind), _shares(store.usual, kind) if store.usual is not None else {}
    before = {save: kept for save, kept in mine.items() if save.last_at < first_strike(store.run.faults)}
    usual = _by_series((save, share) for save, (share, _) in (theirs if len(theirs) > 1 else before).items())
    for save, (share, step) in mine.items():
        shares = sorted(usual.get(save.series, ()))
        if len(shares) < 2:
            continue
        by_chance = len(shares) > limits.STEADY_SAVES and shares[-1] - shares[-2] > limits.KEPT_MORE
        most = shares[-2] if by_chance else shares[-1]
        if share > most + limits.KEPT_MORE:
            yield save, step, share, most, by_chance


def _shares(store: Store, kind: str) -> Mapping[Save, tuple[float, int]]:
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
    seen = store.undamaged.items()
    return {
        "told": ((save, [(1, save.tensors)]) for save in store.whole if save.tensors),
        "files": ((save, [(1, each.digests[0])]) for save, each in seen if each.digests[0]),
        "tensors": ((save, [(1, each.digests[1])]) for save, each in seen if each.digests[1]),
        "parts": ((save, [(_bytes_of(tensor), tensor) for tensor in each.tensors]) for save, each in seen),
    }


def _bytes_of(tensor: str) -> int:
    """Parses the number `BYTES` in a text of the form `BYTES DIGEST`. Returns 0 if `BYTES` is not a valid number."""
    size = tensor.partition(" ")[0]
    return int(size) if size.isascii() and size.isdecimal() and len(size) <= DIGITS_MAX else 0


def unlike(store: Store) -> Found:
    """Yields saves without a property that all fault-free saves share, if world sizes and layouts are the same."""
    usual, run = store.usual, store.run
    if usual is None or {epoch.size for epoch in run.epochs} != {epoch.size for epoch in usual.run.epochs}:
        return
    kinds = {save.kind for save in usual.whole}
    for save, has, words, due in () if new_layout(run, [usual.run]) else without_what_all_share(store, [usual]):
        if save.kind in kinds and (has == "no known" or save.at < run.work_changed_at):
            yield NoSave(save, f"it has {has} {words}, and {due} without a fault", tellers.SAVES_BESIDE)


def without_what_all_share(store: Store, others: Sequence[Store]) -> Iterator[tuple[Save, str, str, str]]:
    """Yields saves in which a value, such as the number of tensors, differs from the value that all later saves in the
    stores `others` share. Each result holds the save, its value, the value's name, and the usual value."""
    for key, told in store.alike.items():
        theirs = [other.alike.get(key, {}) for other in others]
        first = max(min((save.step for save in each), default=0) for each in theirs)
        later = [[has for save, has in each.items() if save.step > first] for each in theirs]
        values = {has for each in later for has in each}
        if len(values) == 1 and min(map(len, later)) >= limits.STEADY_SAVES:
            odd = ((save, has) for save, has in told.items() if has not in values and save.step > first)
            yield from ((save, has, key[1], min(values)) for save, has in odd)


def unlike_usual(store: Store, usual: Store) -> Iterator[Save]:
    """Yields saves that differ from the fault-free save in over 10 % of tensor bytes. Yields nothing unless at least
    one save is identical."""
    theirs = {(save.series, save.step): {*look.tensors} for save, look in usual.undamaged.items()}
    same: dict[Save, float] = {}
    for save, look in store.undamaged.items():
        sizes = {tensor: _bytes_of(tensor) for tensor in look.tensors}
        held = sizes.keys() & theirs.get((save.series, save.step), set())
        if look.tensors and (save.series, save.step) in theirs:
            same[save] = sum(sizes[tensor] for tensor in held) / max(sum(sizes.values()), 1)
    if max(same.values(), default=0) == 1:
        yield from (save for save, share in same.items() if share < 1 - limits.KEPT_MORE)


def of_another_step(store: Store) -> Found:
    """Yields saves that a process began before doing the saved step, or unusually many steps after that step."""
    mine = _ahead(store)
    usual = [*(_ahead(store.usual).values() if store.usual is not None else ())]
    usual += [ahead for save, ahead in mine.items() if save.last_at < first_strike(store.run.faults)]
    if len(usual) < 2:
        return
    least, most = min(0, *usual), max(usual)
    latest = most + limits.BEGUN_LATE_STEPS * store.run.stride if most == min(usual) else NEVER
    for save, ahead in mine.items():
        if ahead < least or (ahead > latest and save.begun is not None):
            who = f"rank {store.run.processes[save.process].rank}"
            yield NoSave(save, f"{who} began it when it had done step {save.step + ahead}", tellers.SAVES_BESIDE)


def _ahead(store: Store) -> Mapping[Save, int]:
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
    """Yields saves logged under the name of a damaged checkpoint, if the harness saw no new checkpoint of that name."""
    known = [event for fault in store.run.faults for event in fault.damaged if event.get("checkpoint")]
    damaged = {last_name(str(event["checkpoint"])): event["at"] for event in known}
    patience_ns = max(limits.UNSEEN_FACTOR * store.late_ns(max), limits.REMOVAL_NS)
    for save in store.whole if damaged and not store.run.unseen else ():
        name, until = last_name(save.path), min(store.went(save), store.run.end)
        if damaged.get(name, NEVER) < save.at and until - save.last_at > patience_ns:
            looks = any(seen.at > save.at for seen in store.by_name.get(name, []))
            if not looks and not store.is_hidden(save.last_at, until):
                yield NoSave(save, "a fault had damaged what was there, and the harness saw nothing new in its place")


def shrunk(store: Store) -> Found:
    """Yields saves that were over 10 % smaller after all nodes had ended than when the harness saw them before."""
    for save in {save.path: save for save in store.whole}.values():
        left, looks = store.left_of(save), store.sound.get(save, ())
        now, then = left.get("bytes") or 0, (looks[-1].size or 0) if looks else 0
        spoilt = store.is_hidden(save.last_at, NEVER) or not store.sound_at(store.run.end)(save)
        if left.get("whole") and now < limits.SMALLER_STEADY * then and not spoilt:
            yield NoSave(save, f"the harness saw {then:,} bytes, and {now:,} when all nodes had ended")


def changed(store: Store) -> Found:
    for save in store.rewritten(1):
        yield NoSave(save, "the harness saw its tensors change after it was whole", tellers.SAVES_BESIDE)


def too_early(store: Store) -> Found:
    """Yields saves that the harness saw complete before any rank had done the saved step."""
    run = store.run
    steps, first = np.unique(run.steps.step, return_index=True)  # rows are in order of time
    done = dict(zip(steps.tolist(), run.steps.end[first].tolist(), strict=True))
    resumed = any(run.processes[row].restored_step for epoch in run.epochs[:1] for row in epoch.processes)
    since = int(run.steps.begin.min()) if resumed else -NEVER  # the job found the saves before that
    for save in store.named:
        seen = next((each for each in store.looks_at(save) if each.at >= since), None)
        early = done.get(save.step, 0) - run.uncertainty_ns - limits.SAVED_EARLY_NS
        if seen is not None and seen.step == save.step and seen.at < early:
            yield NoSave(save, "the harness saw it before any rank had done its step", tellers.SAVES_BESIDE)


def holds_another(store: Store) -> Found:
    """Yields saves whose stored content states another step number than the process logged for the save."""
    for save in store.named:
        steps = {each.step for each in store.looks_at(save) if each.step is not None}
        if steps and save.step not in steps:
            yield NoSave(save, f"the harness saw that it holds step {min(steps)}")
