"""Holds saves as processes logged them, and as the harness saw them when it looked into the checkpoint store.

The harness looks into the store only from time to time, so a save that is soon overwritten or removed may stay unseen.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Self

import numpy as np

from harness.evidence.by_time import Window, touches, union
from harness.judge.facts import tellers
from harness.judge.facts.known import By, Word
from harness.judge.thresholds import REMOVAL_NS
from harness.timeline.lookups import NEVER, first_from, grouped
from harness.timeline.save_events import COMMITTED, PART, family
from harness.timeline.timeline import Ints, Timeline

SoundAt = Callable[[int], Callable[["Save"], bool]]  # from a moment to a test: no fault had damaged the save by then


@dataclass(frozen=True)
class Save:
    """One save of a checkpoint as one process logged it: the begin of the save, its end, or both."""

    step: int  # -1: not known
    process: int  # row in Timeline.processes; -1: no process, or one from before the window
    begun: int | None  # when its process began it
    ended: int | None  # when its process had committed it, or failed to
    how: str  # event that reported its end, or the harness's look; empty: neither
    path: str = ""  # as its process told it
    holds: tuple[str, ...] = ()  # parts of the state in it, as `model`
    tensors: str = ""  # digest of the tensors
    kind: str = "untold"
    duration_ns: int = 0
    size: int | None = None  # as reported, in bytes
    a_step: int | None = None  # micro-batches of the step before the save
    amid: int | None = None  # micro-batches already done of the next step
    begun_path: str = ""  # the path that was reported when the save began
    files: tuple[str, ...] = ()  # files that its process wrote, relative to its folder
    write_ns: int | None = None  # ns until the files were written
    content: str = ""  # digest of the files

    @property
    def at(self) -> int:
        """Returns the time of the first logged event about this save."""
        return self.begun if self.begun is not None else self.ended or 0

    @property
    def last_at(self) -> int:
        """Returns the time of the last logged event about this save."""
        return self.ended if self.ended is not None else self.at

    @cached_property
    def series(self) -> str:
        return family(self.path)

    @property
    def told(self) -> bool:
        """Returns True if the process logged that the save, or the process's part of the save, is committed."""
        return self.how in (COMMITTED, PART)

    @property
    def by(self) -> By:
        return tellers.save(self.told)

    @property
    def word(self) -> Word:
        """Returns the time of the last logged event about this save, marked as a claim that only the trainer makes."""
        return Word(self.last_at)

    @property
    def said(self) -> str:
        """Returns a text that says whether the save was logged as committed."""
        committed = f"a checkpoint of step {self.step} had been committed"
        return committed if self.told else f"it had saved step {self.step}, as far as is known"


@dataclass(frozen=True)
class Seen:
    """One observation of a complete checkpoint in the store, found unchanged in two scans by the harness."""

    at: int
    step: int | None
    path: str
    size: int | None
    digests: tuple[str, str]  # of its files, of its tensors; in a large checkpoint, perhaps of samples
    told: Mapping[str, Any]  # all fields of the event that the harness logged
    by = tellers.SEEN

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        step = event["step"] if isinstance(event.get("step"), int) else None
        digests = str(event.get("sha256") or ""), str(event.get("tensors") or "")
        return cls(event["at"], step, str(event.get("path")), event.get("bytes"), digests, event)

    @property
    def tensors(self) -> Sequence[str]:
        """Returns the size and digest of each of the checkpoint's largest tensors, as texts `BYTES DIGEST`."""
        return self.told.get("tensor_digests") or ()

    @property
    def zeros(self) -> float:
        """Returns the share (0 to 1) of all tensor bytes that is in tensors of zeros only."""
        return float(self.told.get("zero_bytes", 0) / max(self.told.get("tensor_bytes", 0), 1))


class Store:
    """The checkpoints seen in a run's store. `whole` lists committed saves; `usual` is the fault-free run's store."""

    def __init__(self, run: Timeline, whole: Sequence[Save], sound_at: SoundAt, usual: "Store | None"):
        self.run, self.usual, self.sound_at = run, usual, sound_at
        self.whole = [save for save in whole if save.step >= 0]
        self.removed = grouped((last_name(str(event.get("path"))), event["at"]) for event in run.removed)
        self.seen = list(map(Seen.of, run.published))
        self.by_name = grouped((last_name(seen.path), seen) for seen in self.seen)
        self.by_step = grouped((seen.step, seen) for seen in self.seen if seen.step is not None)
        self.left: Mapping[str, Mapping[str, Any]] | None = None  # checkpoints after all nodes had ended
        if run.left is not None and not run.unseen and not run.beside.job_goes_on:
            left = {last_name(each["path"]): each for each in run.left.get("checkpoints") or ()}
            self.left = left if len(left) == run.left.get("count") else None

    def name_of(self, save: Save) -> str | None:
        """Returns the component of the save's path under which the harness saw a checkpoint, or `None`."""
        parts = _last_parts(save.path)
        return next((part for part in parts if part in self.by_name or part in (self.left or ())), None)

    def looks_at(self, save: Save) -> Sequence[Seen]:
        """Returns all observations that the harness made of checkpoints with the name of this save."""
        return self.by_name.get(self.name_of(save) or "", [])

    def left_of(self, save: Save) -> Mapping[str, Any]:
        """Returns what the store held under the name of this save after all nodes had ended, or an empty mapping."""
        return (self.left or {}).get(self.name_of(save) or "", {})

    def saw(self, step: int, until: int) -> bool:
        """Returns True if the harness had seen a complete checkpoint of step `step` by the time `until`."""
        return any(seen.at <= until for seen in self.by_step.get(step, ())[:1])

    def left_steps(self, series: str | None = None) -> list[int]:
        """Returns the steps of the complete checkpoints (of `series`, if given) in the store after all nodes ended."""
        whole = {path: each.get("step") for path, each in (self.left or {}).items() if each.get("whole")}
        return [step for path, step in whole.items() if isinstance(step, int) and series in (None, family(path))]

    @cached_property
    def sights(self) -> Mapping[Save, Sequence[Seen]]:
        """Maps each save to the harness's observations of the save, which may differ as files arrive one by one."""
        margin_ns, found = self.run.uncertainty_ns, dict[Save, Sequence[Seen]]()
        begun = dict[str, int]()  # when the next save of the same name or step began
        for save in reversed(self.whole if self.seen else ()):
            key = save.path or str(save.step)
            until, begun[key] = begun.get(key, NEVER), save.at
            name = self.name_of(save)
            looks = self.by_name.get(name, []) if name else self.by_step.get(save.step, [])
            for since in (save.last_at, save.at):
                first, last = (bisect.bisect_left(looks, at, key=attrgetter("at")) for at in (since - margin_ns, until))
                seen = [each for each in looks[first:last] if each.step in (None, save.step)]
                if seen:
                    found[save] = seen
                    break
        return dict(reversed(found.items()))

    @cached_property
    def sound(self) -> Mapping[Save, Sequence[Seen]]:
        """Maps each save to those observations that no damage by a fault and no removal can have affected."""
        sound = []
        for save, each in ((save, each) for save, looks in self.sights.items() for each in looks):
            went = first_from(self.removed.get(last_name(each.path), []), each.at)
            if self.sound_at(each.at)(save) and went - each.at >= REMOVAL_NS:
                sound.append((save, each))
        return grouped(sound)

    @cached_property
    def undamaged(self) -> Mapping[Save, Seen]:
        """Maps each save to the observation with the most bytes among those that show the save undamaged."""
        return {save: max(seen, key=lambda each: each.size or 0) for save, seen in self.sound.items()}

    def late_ns(self, of: Callable[[Any], Any]) -> int:
        """Returns the harness's delay in ns until it saw a save, or 0 if it saw no save. The function `of`, such as a
        median, combines the delays of all saves."""
        return int(of([seen[0].at - save.last_at for save, seen in self.sights.items()])) if self.sights else 0

    def went(self, save: Save) -> int:
        """Returns when the harness first found this save removed from the store, or `NEVER` if it never did."""
        moments = next((self.removed[part] for part in _last_parts(save.path) if part in self.removed), [])
        return first_from(moments, save.last_at)

    def size_of(self, save: Save) -> int | None:
        """Returns the save's size in bytes: the size that the harness saw or, if it saw none, the logged size."""
        seen = self.undamaged.get(save)
        return save.size if seen is None or seen.size is None else seen.size

    def holds_less(self, step: int, since: int) -> tuple[int, int] | None:
        """Returns the number of tensors in the save of `step`, and the next higher number in another save. Returns
        `None` unless the save of `step` holds fewer tensors than each other save. Saves that ended before the time
        `since` are ignored."""
        looks = ((save.step, seen) for save, seen in self.undamaged.items() if save.last_at >= since)
        counts = {number: seen.told.get("tensor_count") for number, seen in looks}
        mine = counts.pop(step, None)
        others = [count for count in counts.values() if count is not None]
        return (mine, min(others)) if mine is not None and len(others) > 1 and mine < min(others) else None

    @cached_property
    def named(self) -> Sequence[Save]:
        """Returns the save at each path at which only one step was ever saved. The result is empty if only one path
        holds a single step, because one path alone does not show how the trainer names saves."""
        steps = grouped((save.path, save.step) for save in self.whole)
        last = {save.path: save for save in self.whole if save.path and len(set(steps[save.path])) == 1}
        return list(last.values()) if len(last) > 1 else ()

    def rewritten(self, which: int) -> Iterator[Save]:
        """Yields saves whose digest of files (`which=0`) or tensors (`which=1`) changed without growth of the save."""
        for save in self.named:
            told = [each for each in self.sound.get(save, ()) if each.digests[1] and each.size]
            looks = [(each.size or 0, each.digests[which]) for each in told]
            if any(size >= later and held != holds for (size, held), (later, holds) in itertools.pairwise(looks)):
                yield save

    @cached_property
    def trained(self) -> Ints:
        """Returns, in order, the steps in which the optimizer applied its update."""
        steps = self.run.steps
        return np.unique(steps.step[steps.applied != 0] if len(steps.applied) else steps.step)

    @cached_property
    def alike(self) -> Mapping[tuple[str, str], Mapping[Save, str]]:
        """Maps each pair (series of saves, property) to the property's value in each save. A property is, for example,
        the number of tensors."""
        found: dict[tuple[str, str], dict[Save, str]] = {}
        for save in self.whole:
            folder = last_name(save.path.rstrip("/").rpartition("/")[0])
            told: dict[str, object] = {"as its state": " and ".join(save.holds), "as its folder": folder}
            told |= {"micro-batches a step": save.a_step, "micro-batches of the next step": save.amid}
            if seen := self.undamaged.get(save):
                count, size = seen.told.get("tensor_count"), seen.told.get("tensor_bytes") or 0
                told["tensors"] = "no known" if count is None else f"{count:,}"
                told["bytes of tensors"] = None if count is None else f"{size:,}"
            for words, what in told.items():
                if what not in ("", None):
                    found.setdefault((save.series, words), {})[save] = str(what)
        return found

    def is_hidden(self, begin: int, end: int) -> bool:
        """Returns True if a fault from time `begin` to `end` may have kept saves out of the store or hidden them."""
        return touches(self._hiding, begin, end)

    def shown_since(self, save: Save, until: int) -> int:
        """Returns the time since which, up to `until`, no fault hid this save: the time of its commit, or of a fault's
        end."""
        place = bisect.bisect_right(self._hiding, until, key=lambda window: window[0])
        return max(save.last_at, self._hiding[place - 1][1]) if place else save.last_at

    def redone(self, save: Save, until: int) -> int:
        """Returns the time of the first restart after a save if a fault hid the save and the job saved the step again.
        Returns `NEVER` otherwise. What the harness sees after a restart may be the repeated save."""
        if self.shown_since(save, until) == save.last_at:
            return NEVER
        restarted = first_from(self._restarts, save.last_at)
        return restarted if self._last_begun[save.step] > restarted else NEVER

    @cached_property
    def _restarts(self) -> Sequence[int]:
        return sorted(epoch.begin for epoch in self.run.epochs)

    @cached_property
    def _last_begun(self) -> Mapping[int, int]:
        return {save.step: save.at for save in self.whole}

    @cached_property
    def _hiding(self) -> Sequence[Window]:
        windows = []
        for fault in self.run.faults:
            told = fault.damaged and all(isinstance(damage.get("step"), int) for damage in fault.damaged)
            if fault.injected is not None and (fault.spoils or not fault.kills) and not told:
                healed = NEVER if fault.healed is None else fault.healed
                windows.append((fault.injected, max(fault.injected, healed)))
        return union(windows)


def _last_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part][:-4:-1]


def last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
