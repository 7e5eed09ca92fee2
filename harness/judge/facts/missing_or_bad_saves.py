"""A save as it was told, what the harness itself saw of it in the store, and which saves are none.

Where the two differ, the store is right. The harness looks at it now and then: what was soon written over or removed
may stay unseen. So nothing follows from one save that was not seen, unless it lay there for long or should still be
there at the end; and nothing at all for a store that was never seen.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.judge.facts.by_time import Window, touches, union
from harness.judge.facts.known import By, Word
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped
from harness.timeline.save_events import COMMITTED, PART, family
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Ints, Timeline

SoundAt = Callable[[int], Callable[["Save"], bool]]  # whether no fault had damaged a save by then
SMALLER = 0.5  # of the smallest that was saved without a fault
SMALLER_STEADY, STEADY, STEADY_SAVES = 0.9, 0.97, 3  # the same, where so many differ by no more than this
ZEROS_MORE, KEPT_MORE = 0.05, 0.1  # of all bytes of tensors
LATE_STEPS = 5  # further at the most, when a save is begun: it may be begun beside the steps
REMOVAL_NS = 1_000_000_000  # from the first file of a checkpoint that goes until the harness sees that it is gone
EARLY_NS = 500_000_000  # a save may be told a moment before its step is
DIGITS_MAX = 18  # of a size that a log tells
UNSEEN_FACTOR = 5  # times the longest time until one was seen: so long they lay there unseen
UNSEEN_LEAST_NS = 5_000_000_000
OF_TENSORS, HOLLOW_BYTES = ("reference", "dcp"), 2**16  # layouts; fewer bytes hold no model that is read otherwise


@dataclass(frozen=True)
class Save:
    """One checkpoint as one process told of it: that it began it, how that ended, or both."""

    step: int  # -1: it is not known
    process: int  # row in Timeline.processes; -1: it is of before the window
    begun: int | None
    ended: int | None
    how: str  # the name of the event that told its end, or that the harness saw it; empty: none did
    path: str = ""
    holds: tuple[str, ...] = ()  # whose state it put in
    tensors: str = ""  # digest of them
    kind: str = "untold"
    duration_ns: int = 0
    size: int | None = None  # as told, in bytes
    a_step: int | None = None  # micro-batches that the step before it took
    amid: int | None = None  # and that had been done of the next one
    begun_path: str = ""  # what was written first
    files: tuple[str, ...] = ()  # that its process wrote, relative to its folder
    write_ns: int | None = None  # until they were written
    content: str = ""  # digest of them

    @property
    def at(self) -> int:
        """When it was told of first."""
        return self.begun if self.begun is not None else self.ended or 0

    @property
    def last_at(self) -> int:
        """When it was told of last."""
        return self.ended if self.ended is not None else self.at

    @cached_property
    def series(self) -> str:
        return family(self.path)

    @property
    def told(self) -> bool:
        """Whether somebody told that it is committed."""
        return self.how in (COMMITTED, PART)

    @property
    def by(self) -> By:
        """Whoever told that it is committed is whom it speaks against."""
        return By.SEEN if self.told else By.MISSING

    @property
    def word(self) -> Word:
        """The trainer's word for what was saved and how."""
        return Word(self.last_at)

    @property
    def said(self) -> str:
        """In words."""
        return (
            f"a checkpoint of step {self.step} had been committed"
            if self.told
            else f"it had saved step {self.step}, as far as is known"
        )


@dataclass(frozen=True)
class Seen:
    """A checkpoint as the harness saw it: whole, and the same in two looks."""

    at: int
    step: int | None
    path: str
    size: int | None
    zeros: float  # share of its tensors' bytes, of those that are zero from end to end
    digests: tuple[str, ...]  # of its files, of its tensors; those of a large one may be of samples
    tensors: Sequence[str]  # its largest ones: bytes and digest
    count: int | None  # of its tensors
    tensor_bytes: int | None
    hollow: bool  # small, of a layout that is one of tensors, and without any
    by: By = By.SEEN


@dataclass(frozen=True)
class NoSave:
    """A save that was told as committed, and is none."""

    save: Save
    why: str
    by: By = By.SEEN


class Store:
    """What the harness saw in the store of a run, beside the saves that the trainer told as committed. `usual`: of its
    fault-free run."""

    def __init__(self, run: Timeline, whole: Sequence[Save], sound_at: SoundAt, usual: Store | None):
        self._run, self._usual, self._sound_at = run, usual, sound_at
        self._whole = [save for save in whole if save.step >= 0]
        self._removed = grouped((last_name(str(event.get("path"))), event["at"]) for event in run.removed)
        self.seen = list(map(_seen, run.published))
        self._by_name = grouped((last_name(seen.path), seen) for seen in self.seen)
        self._by_step = grouped((seen.step, seen) for seen in self.seen if seen.step is not None)
        self._left: Mapping[str, Mapping[str, Any]] | None = None  # all that was there when all nodes had ended
        if run.left is not None and not run.unseen and not run.beside.job_goes_on:
            told = run.left.get("checkpoints") or ()
            left = {last_name(each["path"]): each for each in told}
            self._left = left if len(left) == run.left.get("count") else None

    def _is_going(self, seen: Seen) -> bool:
        """Whether it was removed right after: its files go one after the other, and the harness may see the rest."""
        return first_from(self._removed.get(last_name(seen.path), []), seen.at) - seen.at < REMOVAL_NS

    def _name_of(self, save: Save) -> str | None:
        """What the harness calls it, if it saw anything that may be it."""
        parts = _last_parts(save.path)
        return next((part for part in parts if part in self._by_name or part in (self._left or ())), None)

    def _looks(self, save: Save, since: int, until: int) -> list[Seen]:
        """Of the time in which what is seen can be this save."""
        name = self._name_of(save)
        found = self._by_name.get(name, []) if name else self._by_step.get(save.step, [])
        first = bisect.bisect_left(found, since, key=lambda seen: seen.at)
        last = bisect.bisect_left(found, until, key=lambda seen: seen.at)
        return [seen for seen in found[first:last] if seen.step is None or save.step in (-1, seen.step)]

    def looks_at(self, save: Save) -> Sequence[Seen]:
        """What it saw under the name of this save."""
        return self._by_name.get(self._name_of(save) or "", [])

    def never_saw(self, step: int, since: int, until: int) -> bool:
        """Whether it would have seen a checkpoint of this step by then, and saw none; nor found one at the end that it
        had never seen."""
        if self._all_steps is None or self.is_hidden(since, until):
            return False
        seen = self._by_step.get(step, ())
        return seen[0].at > until + self._late_ns(max) if seen else step not in self._all_steps

    def saw(self, step: int, until: int) -> bool:
        """Whether it had seen a whole checkpoint of this step by then."""
        return any(seen.at <= until for seen in self._by_step.get(step, ())[:1])

    @property
    def left_steps(self) -> list[int]:
        """The steps of the whole checkpoints that it found when all nodes had ended."""
        found = (each.get("step") for each in (self._left or {}).values() if each.get("whole"))
        return [step for step in found if isinstance(step, int)]

    def written(self, step: int) -> frozenset[str]:
        """This step, as it is written in the names of what it found when all nodes had ended: `000120`."""
        numbers = (number for name in self._left or () for number in re.findall(r"\d{1,18}", name))
        return frozenset(number for number in numbers if int(number) == step)

    @property
    def sees_all(self) -> bool:
        """Whether it saw each checkpoint, and no line of the job's own is lost."""
        return self._all_steps is not None and not self._run.lost and not self._run.torn

    @cached_property
    def _all_steps(self) -> frozenset[int] | None:
        """The steps of all that it saw; `None` where it does not see all, or not of which step that is."""
        known = {each.step for each in self.seen} | {each.get("step") for each in (self._left or {}).values()}
        watched = any(self._is_watched(series) for series in {save.series for save in self._whole})
        return None if None in known or not watched else frozenset(step for step in known if step is not None)

    @cached_property
    def sights(self) -> Mapping[Save, Sequence[Seen]]:
        """How each save looked that was seen: its files may come one after the other."""
        margin_ns, found = self._run.uncertainty_ns, dict[Save, Sequence[Seen]]()
        begun = dict[str, int]()  # when the next save of the same name or step began
        for save in reversed(self._whole if self.seen else ()):
            key = save.path or str(save.step)
            until, begun[key] = begun.get(key, NEVER), save.at
            seen = self._looks(save, save.last_at - margin_ns, until)
            if seen := seen or self._looks(save, save.at - margin_ns, until):
                found[save] = seen
        return dict(reversed(found.items()))

    @cached_property
    def _undamaged(self) -> Mapping[Save, Seen]:
        """Each at its largest, before a fault may have damaged it."""
        return {save: max(seen, key=lambda each: each.size or 0) for save, seen in self._sound.items()}

    @cached_property
    def _sound(self) -> Mapping[Save, Sequence[Seen]]:
        """What shows what a save held: before a fault may have damaged it, and not while it was being removed."""
        found = dict[Save, Sequence[Seen]]()
        for save, seen in self.sights.items():
            if sound := [each for each in seen if self._sound_at(each.at)(save) and not self._is_going(each)]:
                found[save] = sound
        return found

    @cached_property
    def none(self) -> Mapping[Save, NoSave]:
        """The saves that are none."""
        found: dict[Save, NoSave] = {}
        rules = (
            Store._too_small,
            Store._empty,
            Store._hollow,
            Store._stale,
            Store._stale_in_part,
            Store._unlike,
            Store._of_another_step,
            Store._still_damaged,
        )
        for none in itertools.chain(self.missing, *(rule(self) for rule in rules), self._unlike_its_name()):
            found.setdefault(none.save, none)
        return found

    def _unlike_its_name(self) -> Iterator[NoSave]:
        """Of saves that are named by their step; not in a way in which they are without a fault, too."""
        for rule in (Store._changed, Store._too_early, Store._holds_another, Store._in_anothers_place):
            if self._usual is None or not any(rule(self._usual)):
                yield from rule(self)

    def _late_ns(self, of: Callable[[Any], Any]) -> int:
        """After how long the saves were seen."""
        return int(of([seen[0].at - save.last_at for save, seen in self.sights.items()])) if self.sights else 0

    def _is_watched(self, series: str) -> bool:
        """Whether the harness sees what is saved under such names: without a fault, too, if it saw anything then."""
        usual = self._usual
        if usual is not None and usual.sights and any(each.save.series == series for each in usual.missing):
            return False
        known = usual if usual is not None and usual.sights else self
        cut = self._run.outcome is None  # the harness was killed, or its log was cut: what it saw then is not told
        return not (self._run.unseen or cut) and any(save.series == series for save in known.sights)

    @cached_property
    def missing(self) -> Sequence[NoSave]:
        """What the harness should have seen, and did not; or not for as long as without a fault."""
        by_series = grouped((save.series, save) for save in self._whole)
        watched = [saves for series, saves in by_series.items() if self._is_watched(series)]
        rules = self._unseen, self._passed_by, self._gone, self._not_kept
        return [none for saves in watched for rule in rules for none in rule(saves)]

    def _unseen(self, saves: Sequence[Save]) -> Iterator[NoSave]:
        """Each lay there for longer than it ever takes until one is seen; and all in a row for much longer."""
        late_ns = max(self._late_ns(np.median), self._usual._late_ns(max) if self._usual else self._late_ns(max))

        def is_unseen(pair: tuple[Save, Save]) -> bool:
            first, last = (save.last_at for save in pair)
            known = pair[0] in self.sights or self._went(pair[0]) < NEVER
            return not known and last - first > late_ns and not self.is_hidden(first, last)

        for unseen, pairs in itertools.groupby(itertools.pairwise(saves), is_unseen):
            row = list(pairs)
            lay = row[-1][1].last_at - row[0][0].last_at
            if unseen and lay >= max(UNSEEN_FACTOR * late_ns, UNSEEN_LEAST_NS):
                yield from (NoSave(save, "the harness never saw it in the store") for save, _ in row)

    def _passed_by(self, saves: Sequence[Save]) -> Iterator[NoSave]:
        """As many of the newest are kept as without a fault, so each still lay there when the next one was seen."""
        kept = self._usual._kept(saves[-1].series) if self._usual is not None else 0
        for place, (save, after) in enumerate(itertools.pairwise(saves) if kept > 1 else ()):
            until = saves[place + kept].at if place + kept < len(saves) else self._run.end
            seen = self.sights[after][0].at if after in self.sights else NEVER
            known = self._name_of(save) is not None or save.step in self._by_step
            if not known and seen < until and not self.is_hidden(save.last_at, seen):
                yield NoSave(save, "the harness never saw it in the store, and saw the next one there")

    def _went(self, save: Save) -> int:
        """When the harness saw it go away."""
        moments = next((self._removed[part] for part in _last_parts(save.path) if part in self._removed), [])
        return first_from(moments, save.last_at)

    def _gone(self, saves: Sequence[Save]) -> Iterator[NoSave]:
        for save, after in itertools.pairwise(saves):
            gone = self._went(save)
            early = gone < after.at - self._run.uncertainty_ns and after.begun is not None
            if early and not self.is_hidden(save.last_at, gone):
                yield NoSave(save, "the harness saw it go away before a newer one was begun")

    def _still_damaged(self) -> Iterator[NoSave]:
        """A fault had damaged what was there under this name, and nothing new came when it was told as saved again."""
        known = [event for fault in self._run.faults for event in fault.damaged if event.get("checkpoint")]
        damaged = {last_name(str(event["checkpoint"])): event["at"] for event in known}
        patience_ns = max(UNSEEN_FACTOR * self._late_ns(max), REMOVAL_NS)
        for save in self._whole if damaged and not self._run.unseen else ():
            name = last_name(save.path)
            until = min(self._went(save), self._run.end)
            if damaged.get(name, NEVER) < save.at and until - save.last_at > patience_ns:
                looks = any(seen.at > save.at for seen in self._by_name.get(name, []))
                if not looks and not self.is_hidden(save.last_at, until):
                    yield NoSave(
                        save, "a fault had damaged what was there, and the harness saw nothing new in its place"
                    )

    def holds_less(self, step: int, since: int) -> tuple[int, int] | None:
        """How many tensors the save of this step holds, if the others since then hold more; and how many they do."""
        counts = {save.step: seen.count for save, seen in self._undamaged.items() if save.last_at >= since}
        mine = counts.pop(step, None)
        others = [count for count in counts.values() if count is not None]
        return (mine, min(others)) if mine is not None and len(others) > 1 and mine < min(others) else None

    @property
    def bare(self) -> Sequence[Save]:
        """Each was the only one there when it was removed, and the next one was committed, or seen, later."""
        pairs = itertools.pairwise(() if self._run.unseen else self._whole)
        went = [(save, after, self._went(save)) for save, after in pairs]
        return [
            save
            for save, after, gone in went
            if gone in self._emptied
            and (gone < after.last_at - self._run.uncertainty_ns or after in self.sights)
            and self._sound_at(gone)(save)
            and not self.is_hidden(save.last_at, gone)
        ]

    @cached_property
    def _emptied(self) -> frozenset[int]:
        """When a checkpoint was removed and none was left."""
        there, emptied = set[str](), set[int]()
        gone = [(at, True, name) for name, moments in self._removed.items() for at in moments]
        for at, is_gone, name in sorted([*gone, *((each.at, False, last_name(each.path)) for each in self.seen)]):
            (there.discard if is_gone else there.add)(name)
            if is_gone and not there:
                emptied.add(at)
        return frozenset(emptied)

    def _not_kept(self, saves: Sequence[Save]) -> Iterator[NoSave]:
        """When all nodes had ended, the last one is there; since the last restart, as many of the newest as without a
        fault."""
        named = ((each.get("step"), family(path)) for path, each in (self._left or {}).items() if each.get("whole"))
        there = {step for step, series in named if isinstance(step, int) and series == saves[-1].series}
        if max(there, default=0) > saves[-1].step:
            return  # nobody told of it
        why = "the harness did not find it in the store when all nodes had ended"
        number = self._usual._kept(saves[-1].series) if self._usual is not None else 0
        if self._lacks(saves[-1], self._usual is not None and self._usual._keeps_the_newest(saves[-1].series)):
            yield NoSave(saves[-1], why)
        elif number and self._run.epochs:
            since = {save.step: save for save in saves if save.last_at >= self._run.epochs[-1].begin}
            newest = [since[step] for step in sorted(there | since.keys())[-number:] if step in since]
            more = f"{why}: without a fault the newest {number} are there"
            yield from (NoSave(save, more) for save in newest if self._lacks(save))

    def _kept(self, series: str) -> int:
        """How many of the newest are left at the end; 0: that is not known, or others are."""
        there = {save.step: not self._lacks(save) for save in self._whole if save.series == series}
        newest = [there[step] for step in sorted(there)]
        number = sum(newest) if self._left is not None else 0
        return number if all(newest[len(newest) - number :]) else 0

    def _lacks(self, save: Save, dated: bool = False) -> bool:
        """Whether it was not there, or not whole, when all nodes had ended, and no fault accounts for that. `dated`:
        the step that its content tells counts, too, and not only that of its name."""
        if self._left is None or self.is_hidden(save.last_at, NEVER):
            return False
        left, seen = self._left.get(self._name_of(save) or "", {}), self._undamaged.get(save)
        least = max(1, SMALLER * (seen.size or 0)) if seen else 1
        is_it = not (dated or save in self._named) or left.get("step") in (None, save.step)
        return not (left.get("whole") and left.get("bytes", 0) >= least and is_it)

    def _keeps_the_newest(self, series: str) -> bool:
        """Whether what lay there at the end was, by its content, of the step that was told last."""
        last = next((save for save in reversed(self._whole) if save.series == series), None)
        left = (self._left or {}).get(self._name_of(last) or "", {}) if last is not None else {}
        return last is not None and left.get("step") == last.step

    def is_hidden(self, begin: int, end: int) -> bool:
        """Whether a fault may have kept it from the store, or the harness from seeing it."""
        return touches(self._hiding, begin, end)

    @cached_property
    def _hiding(self) -> Sequence[Window]:
        """When such faults were at work. One that tells of which steps it damaged checkpoints hides nothing else."""
        windows = []
        for fault in self._run.faults:
            told = fault.damaged and all(isinstance(damage.get("step"), int) for damage in fault.damaged)
            if fault.injected is not None and (fault.spoils or not fault.kills) and not told:
                healed = NEVER if fault.healed is None else fault.healed
                windows.append((fault.injected, max(fault.injected, healed)))
        return union(windows)

    def _too_small(self) -> Iterator[NoSave]:
        """Far smaller than any before the first fault, as seen or told; or than any of the fault-free run. Where those
        hardly differ, a smaller one lacks something."""
        usual = self._usual
        ranks = min((epoch.size for epoch in self._run.epochs), default=1) / max(self._run.largest_world, 1)
        for seen_by_us in (True, False):
            shrunk = self._shrunk(seen_by_us, ranks)
            known = _by_series(self._sizes(seen_by_us), self._struck)
            steady = set[str]()
            if usual is not None:
                theirs = _by_series(usual._sizes(seen_by_us), NEVER)
                known |= theirs
                many = ((series, sizes) for series, sizes in theirs.items() if len(sizes) >= STEADY_SAVES)
                steady = {series for series, sizes in many if shrunk == 1 and min(sizes) >= STEADY * max(sizes)}
            for save, size in self._sizes(seen_by_us):
                smallest = min(known.get(save.series, [0]))
                tiny = size < SMALLER * shrunk * smallest
                if tiny or (save.series in steady and size < SMALLER_STEADY * smallest):
                    who = "the harness saw" if seen_by_us else "the trainer told"
                    why = f"{who} {size:,} bytes, and at least {smallest:,} of each without a fault"
                    yield NoSave(save, why, By.SEEN if tiny else By.TOLD)

    def _unlike(self) -> Iterator[NoSave]:
        """What each save without a fault but the first has alike, each of its kind has, in as large a world."""
        usual, run = self._usual, self._run
        if usual is None or {epoch.size for epoch in run.epochs} != {epoch.size for epoch in usual._run.epochs}:
            return
        theirs, mine, kinds = usual.alike, self.alike, {save.kind for save in usual._whole}
        for (series, words), told in mine.items():
            known = list(theirs.get((series, words), {}).values())[1:]
            if len(known) >= STEADY_SAVES and len(set(known)) == 1:
                for save, what in told.items():
                    first = min(each.step for each in theirs[series, words])
                    if what != known[0] and save.step > first and save.kind in kinds:
                        yield NoSave(save, f"it has {what} {words}, and {known[0]} without a fault", By.TOLD)

    def _shrunk(self, seen_by_us: bool, ranks: float) -> float:
        """To which part of a save of the full world one of the smallest may shrink: where most hardly do, none does."""
        usual = [size for _, size in self._usual._sizes(seen_by_us)] if self._usual is not None else []
        mine = [size for _, size in self._sizes(seen_by_us)]
        return 1.0 if usual and mine and np.median(mine) >= STEADY * min(usual) else ranks

    @cached_property
    def alike(self) -> Mapping[tuple[str, str], Mapping[Save, str]]:
        """By series and what it is: of each save what may be the same in all."""
        found: dict[tuple[str, str], dict[Save, str]] = {}
        for save in self._whole:
            seen = self._undamaged.get(save)
            told = {"as its state": " and ".join(save.holds), "as its folder": _folder(save.path)}
            micro = {"micro-batches a step": save.a_step, "micro-batches of the next step": save.amid}
            told |= {words: str(number) for words, number in micro.items() if number is not None}
            if seen is not None and seen.count is not None:
                told |= {"tensors": f"{seen.count:,}", "bytes of tensors": f"{seen.tensor_bytes or 0:,}"}
            elif seen is not None:
                told["tensors"] = "no known"
            for words, what in told.items():
                if what:
                    found.setdefault((save.series, words), {})[save] = what
        return found

    def _hollow(self) -> Iterator[NoSave]:
        """A manifest without what it lists: what was restored was somewhere else."""
        for save, seen in self._undamaged.items():
            if seen.hollow:
                yield NoSave(save, f"the harness saw {seen.size or 0:,} bytes and no tensor in them")

    def _empty(self) -> Iterator[NoSave]:
        """Zeros where there are none without a fault: weights or an optimizer's state that were never filled."""
        most: dict[str, float] = {}
        for save, seen in self._usual._undamaged.items() if self._usual is not None else ():
            most[save.series] = max(seen.zeros, most.get(save.series, 0))
        for save, seen in self._undamaged.items():
            if seen.zeros > most.get(save.series, 1) + ZEROS_MORE:
                why = f"the harness saw {seen.zeros:.0%} of its tensors' bytes in tensors of zeros"
                yield NoSave(save, f"{why}, and at most {most[save.series]:.0%} without a fault")

    @cached_property
    def _named(self) -> Sequence[Save]:
        """The last save at each path that belongs to one step, where there are several."""
        steps = grouped((save.path, save.step) for save in self._whole)
        last = {save.path: save for save in self._whole if save.path and len(set(steps[save.path])) == 1}
        return list(last.values()) if len(last) > 1 else ()

    def _changed(self) -> Iterator[NoSave]:
        """It keeps its content once it is whole."""
        for save in self._named:
            sound = [each for each in self._sound.get(save, ()) if each.size and each.digests[1]]
            if any(a.size == b.size and a.digests[1] != b.digests[1] for a, b in itertools.pairwise(sound)):
                yield NoSave(save, "the harness saw its tensors change after it was whole", By.TOLD)

    def _too_early(self) -> Iterator[NoSave]:
        """It is seen whole when a rank has done its step, and not before."""
        steps, first = np.unique(self._run.steps.step, return_index=True)  # rows are in order of time
        done = dict(zip(steps.tolist(), self._run.steps.end[first].tolist(), strict=True))
        for save in self._named:
            seen = next(iter(self._by_name.get(self._name_of(save) or "", ())), None)
            early = done.get(save.step, 0) - self._run.uncertainty_ns - EARLY_NS
            if seen is not None and seen.step == save.step and seen.at < early:
                yield NoSave(save, "the harness saw it before any rank had done its step", By.TOLD)

    def _holds_another(self) -> Iterator[NoSave]:
        """It holds its step."""
        for save in self._named:
            looks = self._by_name.get(self._name_of(save) or "", ())
            steps = {each.step for each in looks if each.step is not None}
            if steps and save.step not in steps:
                by = By.TOLD if self._usual is None else By.SEEN
                yield NoSave(save, f"the harness saw that it holds step {min(steps)}", by)

    def _in_anothers_place(self) -> Iterator[NoSave]:
        """Where each checkpoint has a place of its own without a fault, it lies where one of another step lay."""
        theirs = {(save.path, save.step) for save in self._usual._whole} if self._usual is not None else set()
        if len(theirs) < STEADY_SAVES or len({path for path, _ in theirs}) < len(theirs):
            return
        first: dict[str, Save] = {}
        for save in self._whole:
            if save.path and first.setdefault(save.path, save).step != save.step:
                why = f"it lies where the checkpoint of step {first[save.path].step} lay"
                yield NoSave(save, why, By.TOLD)

    def size_of(self, save: Save) -> int | None:
        """In bytes, as it was seen, or else as it was told."""
        seen = self._undamaged.get(save)
        return save.size if seen is None or seen.size is None else seen.size

    def _sizes(self, seen: bool) -> list[tuple[Save, int]]:
        if seen:
            return [(save, seen.size) for save, seen in self._undamaged.items() if seen.size is not None]
        return [(save, save.size) for save in self._whole if save.size is not None]

    @property
    def _struck(self) -> int:
        return first_strike(self._run.faults)

    def _stale(self) -> Iterator[NoSave]:
        """The content of an earlier save of another step, though updates were applied in between."""
        for kind, digests in self._contents().items():
            theirs = self._usual._contents().get(kind, {}) if self._usual is not None else {}
            before = {save: digest for save, digest in digests.items() if save.last_at < self._struck}
            if not _changes(theirs if len(theirs) > 1 else before):
                continue
            first: dict[tuple[str, str], Save] = {}
            for save, digest in digests.items():
                same = first.setdefault((save.series, digest), save)
                if same.step < save.step and self._was_trained(same.step, save.step):
                    who = "the trainer told" if kind == "told" else "the harness saw"
                    yield NoSave(save, f"{who} in it the content of the checkpoint of step {same.step}")

    def _stale_in_part(self) -> Iterator[NoSave]:
        """More of its tensors are those of an earlier save than without a fault. One save that stands alone there does
        so for no good reason, and says nothing of what is usual."""
        usual = [*self._usual._of_earlier.items()] if self._usual is not None else []
        known = usual or [(save, kept) for save, kept in self._of_earlier.items() if save.last_at < self._struck]
        by_series = grouped((save.series, share) for save, (share, _) in known)
        for save, (share, step) in self._of_earlier.items():
            shares = sorted(by_series.get(save.series, [1.0]))
            alone = len(shares) > STEADY_SAVES and shares[-1] - shares[-2] > KEPT_MORE
            most = shares[-2] if alone else shares[-1]
            if share > most + KEPT_MORE:
                why = f"the harness saw {share:.0%} of its tensors as in the checkpoint of step {step}"
                usually = f", and at most {most:.0%} " + ("in most others" if alone else "without a fault")
                yield NoSave(save, why + usually, By.TOLD if alone else By.SEEN)

    @cached_property
    def _of_earlier(self) -> Mapping[Save, tuple[float, int]]:
        """The share of its tensors, or of their bytes if that is more, that an earlier save of another step had, though
        updates were applied in between; and the last such step."""
        first: dict[tuple[str, str], int] = {}
        found: dict[Save, tuple[float, int]] = {}
        for save, seen in self._undamaged.items():
            since = [first.setdefault((save.series, tensor), save.step) for tensor in seen.tensors]
            sizes = list(map(_bytes_of, seen.tensors))
            old = [step < save.step and self._was_trained(step, save.step) for step in since]
            if total := sum(sizes):
                share = max(sum(itertools.compress(sizes, old)) / total, sum(old) / len(old))
                found[save] = share, max(itertools.compress(since, old), default=-1)
        return found

    @property
    def tensors(self) -> Mapping[tuple[str, int], tuple[int, str]]:
        """By series and step: when a checkpoint was committed, and the digest of the tensors that the harness saw."""
        seen = {save: each.digests[1] for save, each in self._undamaged.items()}
        return {(save.series, save.step): (save.last_at, digest) for save, digest in seen.items() if digest}

    @property
    def of_no_step(self) -> Mapping[str, list[Seen]]:
        """By path: what tells no step and has tensors, as it was seen one time after the other."""
        return grouped((seen.path, seen) for seen in self.seen if seen.step is None and seen.digests[1])

    @property
    def exports(self) -> Mapping[str, bool]:
        """Files with tensors that lay beside the saves at the end: whether all of them are in the last one it saw."""
        held = (self._run.files_left or {}).get("holding_tensors") or ()
        if not held or not self.seen:
            return {}
        last = {*max(self.seen, key=lambda seen: (seen.step or 0, seen.at)).tensors}
        return {each["file"]: last.issuperset(each.get("tensor_digests") or ()) for each in held}

    @property
    def ended(self) -> int:
        """When the last step was done."""
        return int(self._run.steps.end.max(initial=0))

    def _contents(self) -> Mapping[str, Mapping[Save, str]]:
        """By whom and of what: the digest of each save."""
        found: dict[str, dict[Save, str]] = {"told": {save: save.tensors for save in self._whole if save.tensors}}
        for save, seen in self._undamaged.items():
            for number, digest in enumerate(seen.digests):
                if digest:
                    found.setdefault(f"seen {number}", {})[save] = digest
        return found

    def _was_trained(self, first: int, last: int) -> bool:
        begin, end = np.searchsorted(self._trained, (first, last), "right")
        return bool(begin < end)

    @cached_property
    def _trained(self) -> Ints:
        """The steps whose update was applied, in order."""
        steps = self._run.steps
        return np.unique(steps.step[steps.applied != 0] if len(steps.applied) else steps.step)

    def _of_another_step(self) -> Iterator[NoSave]:
        """Begun before its process had done the step, or long after it, where that is not so without a fault."""
        usual = [*(self._usual._ahead.values() if self._usual is not None else ())]
        usual += [ahead for save, ahead in self._ahead.items() if save.last_at < self._struck]
        if len(usual) < 2:
            return
        least, most = min(0, *usual), max(usual)
        latest = most + LATE_STEPS * self._run.stride if most == min(usual) else NEVER
        for save, ahead in self._ahead.items():
            if ahead < least or (ahead > latest and save.begun is not None):
                rank = self._run.processes[save.process].rank
                why = f"rank {rank} began it when it had done step {save.step + ahead}"
                yield NoSave(save, why, By.TOLD)

    @cached_property
    def _ahead(self) -> Mapping[Save, int]:
        """How many steps further its process was when it began a save, if it told that step."""
        found: dict[Save, int] = {}
        order, places = self._run.rows_by_process
        for process, saves in grouped((save.process, save) for save in self._whole if save.process >= 0).items():
            rows = order[places[process] : places[process + 1]]
            step, end = self._run.steps.step[rows], self._run.steps.end[rows]
            told = set(step.tolist())
            for save, done in zip(saves, np.searchsorted(end, [save.at for save in saves], "right"), strict=True):
                last = int(step[done - 1]) if done else self._run.processes[process].restored_step
                if last is not None and save.step in told:
                    found[save] = last - save.step
        return found


def _by_series(sizes: Iterable[tuple[Save, int]], until: int) -> dict[str, list[int]]:
    """The sizes of what was saved until then."""
    return grouped((save.series, size) for save, size in sizes if save.last_at < until)


def _changes(digests: Mapping[Save, str]) -> bool:
    """Whether each step had a content of its own, as far as is known."""
    steps = grouped(((save.series, digest), save.step) for save, digest in digests.items())
    return len(steps) > 1 and all(len(set(each)) == 1 for each in steps.values())


def _seen(event: Mapping[str, Any]) -> Seen:
    step = event.get("step")
    return Seen(
        at=event["at"],
        step=step if isinstance(step, int) else None,
        path=str(event.get("path")),
        size=event.get("bytes"),
        zeros=event.get("zero_bytes", 0) / max(event.get("tensor_bytes", 0), 1),
        digests=(str(event.get("sha256") or ""), str(event.get("tensors") or "")),
        tensors=event.get("tensor_digests") or (),
        count=event.get("tensor_count"),
        tensor_bytes=event.get("tensor_bytes"),
        hollow="sha256" in event
        and not event.get("tensors")
        and event.get("layout") in OF_TENSORS
        and (event.get("bytes") or 0) < HOLLOW_BYTES,
    )


def _bytes_of(tensor: str) -> int:
    """Of `BYTES DIGEST`."""
    size = tensor.partition(" ")[0]
    return int(size) if size.isascii() and size.isdecimal() and len(size) <= DIGITS_MAX else 0


def _folder(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0].rpartition("/")[2]


def _last_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part][:-4:-1]


def last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
