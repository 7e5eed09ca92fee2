"""What was saved: each checkpoint as the process told of it that saved it, joined once; and what faults did to them.

Found by step, by path and by time, without a look at all of them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from harness.judge.facts import tellers
from harness.judge.facts.known import Word
from harness.judge.facts.missing_or_bad_saves import NoSave, bad, missing
from harness.judge.facts.store import Save as Save
from harness.judge.facts.store import Store, last_name
from harness.timeline.lineage import NEVER
from harness.timeline.lookups import first_from, grouped, last_by
from harness.timeline.save_events import COMMITTED, FAILED, PART, PUBLISHED, STARTED
from harness.timeline.timeline import FaultRecord, Ints, Timeline

T = TypeVar("T")
AS_TOLD = ("path", "tensors", "kind", "duration_ns", "write_ns", "content")  # of a save, as its events have them


@dataclass(frozen=True)
class Damage:
    """A file of a checkpoint that was whole is no longer what was saved, as a fault told it."""

    fault: str
    at: int
    anew: Word  # when somebody wrote it anew, by the trainer's word or as the harness saw it
    unseen_until: int  # the same as the harness saw it, where it watches this checkpoint
    step: int | None
    names: frozenset[str]  # what a restore may call it
    copies: bool  # whether other checkpoints hold the same step
    tensor_bytes: int  # that were lost or changed
    how: str
    path: str
    by = tellers.SEEN

    def is_named(self, place: str) -> bool:
        return not self.names.isdisjoint(place.split("/"))


class Newest(Generic[T]):
    """Finds the highest step of what was there at a moment. It looks back no further than one may be higher."""

    def __init__(self, things: Iterable[tuple[int, int, T]]):  # when, step, what
        self._things = sorted(things, key=lambda each: each[0])
        self._at = [at for at, _, _ in self._things]
        self._highest = list(itertools.accumulate((step for _, step, _ in self._things), max))

    def before(self, moment: int, good: Callable[[T], bool], least: int = 0) -> T | None:
        """Of those that are good, and of a step from `least` on. Of one step the last one."""
        found: T | None = None
        for place in range(bisect.bisect_left(self._at, moment) - 1, -1, -1):
            if self._highest[place] < least:
                break
            _, step, what = self._things[place]
            if step >= least and good(what):
                found, least = what, step + 1
        return found


class Saves:
    """The saves of a run, in the order in which they were told of. `usual`: those of its fault-free run."""

    by = tellers.FAULT_FREE_SAVES

    def __init__(self, run: Timeline, usual: Saves | None = None):
        self.run, self._usual = run, usual
        self.all: Sequence[Save] = sorted(_joined(run.checkpoints), key=lambda save: save.at)

    @cached_property
    def whole(self) -> Sequence[Save]:
        """Those that were committed, in the order of that. A part of one that several ranks save is none."""
        return sorted((save for save in self.all if save.how == COMMITTED), key=lambda save: save.last_at)

    @cached_property
    def store(self) -> Store:
        """What the harness saw of them."""
        return Store(self.run, self.whole, self.sound_at, self._usual.store if self._usual is not None else None)

    @cached_property
    def missing(self) -> Sequence[NoSave]:
        """Those that the harness should have seen in the store, and did not."""
        return list(missing(self.store, self._is_watched))

    @cached_property
    def none(self) -> Mapping[Save, NoSave]:
        """Those that were told as committed, and are none."""
        found: dict[Save, NoSave] = {}
        for none in itertools.chain(self.missing, bad(self.store)):
            found.setdefault(none.save, none)
        return found

    def _is_watched(self, series: str) -> bool:
        """Whether the harness sees what is saved under such names: without a fault, too, if it saw anything then."""
        usual = self._usual
        if usual is not None and usual.store.sights and any(each.save.series == series for each in usual.missing):
            return False
        known = usual if usual is not None and usual.store.sights else self
        cut = self.run.outcome is None  # the harness was killed, or its log was cut: what it saw then is not told
        return not (self.run.unseen or cut) and any(save.series == series for save in known.store.sights)

    @cached_property
    def seen_steps(self) -> frozenset[int] | None:
        """The steps of all that the harness saw; `None` where it does not see all, or not of which step that is."""
        known = {each.step for each in self.store.seen} | {
            each.get("step") for each in (self.store.left or {}).values()
        }
        watched = any(self._is_watched(series) for series in {save.series for save in self.store.whole})
        return None if None in known or not watched else frozenset(step for step in known if step is not None)

    def never_seen(self, step: int, since: int, until: int) -> bool:
        """Whether the harness would have seen a checkpoint of this step by then, and saw none; nor found one at the end
        that it had never seen."""
        if self.seen_steps is None or self.store.is_hidden(since, until):
            return False
        seen = self.store.by_step.get(step, ())
        return seen[0].at > until + self.store.late_ns(max) if seen else step not in self.seen_steps

    @property
    def left_untold(self) -> int:
        """The newest step of those that the harness found at the end, if nobody told that or a later one; else 0."""
        newest = max(self.store.left_steps, default=0)
        return newest if self.whole and newest > max(save.step for save in self.whole) else 0

    @cached_property
    def good(self) -> Sequence[Save]:
        """Those that were committed and are what was told; of a trainer that tells none, what the harness saw."""
        seen = () if self.run.checkpoints else self.seen
        return [*seen, *(save for save in self.whole if save not in self.none)]

    @cached_property
    def seen(self) -> Sequence[Save]:
        """What the harness saw, where names tell the step. None, if one tells more than was ever done by then."""
        told = [each for each in self.store.seen if each.step is not None]
        furthest = np.maximum.accumulate(np.append(0, self.run.steps.step))
        done = furthest[np.searchsorted(self.run.steps.end, [each.at for each in told], "right")]
        saves = [Save(each.step or 0, -1, None, each.at, PUBLISHED, each.path) for each in told]
        return saves if all(save.step <= most for save, most in zip(saves, done.tolist(), strict=True)) else []

    @cached_property
    def never_sound(self) -> Mapping[int, NoSave]:
        """By step: saves that are surely none, where there is no other one of this step."""
        good = {save.step for save in self.good}
        return {none.save.step: none for none in self.none.values() if none.by.sure and none.save.step not in good}

    @cached_property
    def steps(self) -> Ints:
        """The steps of which there was a checkpoint, each once, in order."""
        return np.unique(np.array([save.step for save in self.good if save.step > 0], np.int64))

    @property
    def open(self) -> Sequence[Save]:
        """Those of which nobody told how they ended, though their process went on with its steps."""
        return [save for save, end, step in self._followed if save.step >= 0 and end == NEVER > step]

    @property
    def punctual(self) -> frozenset[int]:
        """The ranks that commit what they begin to save, each time before their next step."""
        ranks = self.run.processes
        late = {ranks[save.process].rank for save, end, step in self._followed if end >= step < NEVER}
        return frozenset(ranks[save.process].rank for save, _, _ in self._followed) - late

    @cached_property
    def _followed(self) -> Sequence[tuple[Save, int, int]]:
        """Each save that was begun, when its process told next how one of that step had ended, and when it began its
        next step."""
        order, places = self.run.rows_by_process
        ends = grouped(
            ((save.process, save.step), save.last_at)
            for save in sorted(self.all, key=attrgetter("last_at"))
            if save.how
        )
        begun = grouped((save.process, save) for save in self.all if save.begun is not None and save.process >= 0)
        found = []
        for process, mine in begun.items():
            begins = sorted(self.run.steps.begin[order[places[process] : places[process + 1]]].tolist())
            for save in mine:
                end = first_from(ends.get((process, save.step), ()), save.at)
                found.append((save, end, first_from(begins, save.at + 1)))
        return found

    def of_step(self, step: int, until: int) -> bool:
        """Whether a checkpoint of it was committed by then, or at least begun and not failed."""
        return last_by(self._words.get(step, []), until) not in (None, FAILED)

    def only_begun(self, step: int, until: int) -> Word | None:
        """The first word of a save of this step, if nobody told by then that one was committed."""
        words = self._words.get(step, [])
        done = any(what in (COMMITTED, PART) for at, what in words if at <= until)
        return Word(words[0][0]) if words and not done else None

    def other_at_path(self, path: str, step: int, until: int) -> int | None:
        """The step of which this path was at last, where by then it had never been of the one that is given."""
        last = last_by(self._by_path.get(path, []), until)
        return last if self._first_at_path.get((path, step), NEVER + 1) > until else None

    def elsewhere(self, path: str, until: int) -> str:
        """Where a checkpoint of this name had been saved last by then, if none ever was at this absolute path; else an
        empty text."""
        last = last_by(self._by_last_name.get(last_name(path), []), until) if path.startswith("/") else None
        return last if last and path.rstrip("/") not in self._absolute else ""

    def content_of(self, step: int | None, until: int) -> str:
        """What a checkpoint of this step held that was committed by then, if all ever told one and the same content."""
        at, content = self._contents.get(-1 if step is None else step, (NEVER, ""))
        return content if at <= until else ""

    @cached_property
    def damage(self) -> Mapping[str, Sequence[Damage]]:
        """By the id of the fault."""
        return {fault.id: [self._damage(fault, told) for told in fault.damaged] for fault in self.run.faults}

    def sound_at(self, moment: int) -> Callable[[Save], bool]:
        """Whether no fault that had struck by then may have damaged a checkpoint. It was begun when such a fault was
        over; or it is known what that damaged, and it is another."""
        over = last_by(self._over, moment)

        def sound(save: Save) -> bool:
            begun = min(save.last_at, self._words.get(save.step, [(NEVER, "")])[0][0])
            return (over is None or begun > over) and self._damaged.get(save.step, NEVER) > moment

        return sound

    @cached_property
    def _spoilers(self) -> Sequence[tuple[int, int, frozenset[int]]]:
        """When each fault struck that may damage checkpoints, from when on none until then is at work, and of which
        steps it damaged checkpoints; of none, where that is not known of all its damage."""
        found = []
        for fault in self.run.faults:
            if fault.spoils and fault.injected is not None:
                steps = [damage.step for damage in self.damage[fault.id]]
                known = frozenset(step for step in steps if step is not None and None not in steps)
                over = NEVER if fault.healed is None else fault.healed + self.run.uncertainty_ns
                found.append((fault.injected, -NEVER if known else over, known))
        return sorted(found, key=lambda each: each[0])

    @cached_property
    def _over(self) -> Sequence[tuple[int, int]]:
        overs = itertools.accumulate((over for _, over, _ in self._spoilers), max)
        return [(at, over) for (at, _, _), over in zip(self._spoilers, overs, strict=True)]

    @cached_property
    def _damaged(self) -> Mapping[int, int]:
        """Steps whose checkpoints are known to be damaged, and since when they may be."""
        return {step: at for at, _, steps in reversed(self._spoilers) for step in steps}

    def _damage(self, fault: FaultRecord, told: Mapping[str, Any]) -> Damage:
        names, at = frozenset(told.get("names") or ()), told["at"]
        step = told["step"] if "step" in told else self._last_of(names, at)
        words = [] if step is None else self._words.get(step, [])
        begun = [at for at, what in words if what == STARTED]  # a commit that is told late is of the save before
        told_anew = first_from(begun or [at for at, _ in words], at + 1)
        published = self._published.get(told.get("checkpoint"))
        later = (event for event in published or () if event["at"] > at and event.get("sha256") != told.get("sha256"))
        seen_anew = told_anew if published is None else next((event["at"] for event in later), NEVER)
        return Damage(
            fault=fault.id,
            at=at,
            anew=Word(min(seen_anew, told_anew)),
            unseen_until=seen_anew,
            step=step,
            names=names,
            copies=bool(told.get("copies")),
            tensor_bytes=told.get("tensor_bytes") or 0,
            how=told.get("how", "damage"),
            path=str(told.get("path")),
        )

    @cached_property
    def _published(self) -> Mapping[object, Sequence[Mapping[str, Any]]]:
        return grouped((event.get("path"), event) for event in self.run.published)

    @cached_property
    def _contents(self) -> Mapping[int, tuple[int, str]]:
        """By step: when its content was told first, and that; an empty text where it was not always the same."""
        found: dict[int, tuple[int, str]] = {}
        for save in (save for save in self.whole if save.content):
            at, content = found.get(save.step, (save.last_at, save.content))
            found[save.step] = at, content if content == save.content else ""
        return found

    @cached_property
    def _words(self) -> Mapping[int, Sequence[tuple[int, str]]]:
        """By step: when something was told of a checkpoint of it, and what."""
        return grouped((int(e["step"]), (e["at"], e["event"])) for e in self.run.checkpoints if "step" in e)

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """When it was told of, and of which step; a path may be used again."""
        return grouped((save.path, (save.at, save.step)) for save in self.all if save.path and save.step >= 0)

    @cached_property
    def _by_last_name(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """By the last part of an absolute path: when it was told of, and the whole of it."""
        return grouped((last_name(save.path), (save.at, save.path)) for save in self.all if save.path.startswith("/"))

    @cached_property
    def _absolute(self) -> frozenset[str]:
        return frozenset(save.path.rstrip("/") for save in self.all if save.path.startswith("/"))

    @cached_property
    def _first_at_path(self) -> Mapping[tuple[str, int], int]:
        return {(path, step): at for path, told in self._by_path.items() for at, step in reversed(told)}

    def _last_of(self, names: frozenset[str], before: int) -> int | None:
        """The step that the trainer told when it committed the last checkpoint of one of these names."""
        mine = [(save.last_at, save.step) for save in self.all if save.told and names & {*save.path.split("/")}]
        return max((each for each in mine if each[0] < before), default=(0, None))[1]


def _joined(events: Iterable[Mapping[str, Any]]) -> Iterator[Save]:
    """Each end belongs to what its process had begun last for that step."""
    begun: dict[tuple[int, int], Mapping[str, Any]] = {}
    for event in events:
        key = event["process"], int(event.get("step", -1))
        before = begun.pop(key, None)
        if event["event"] != STARTED:
            yield _save(before, event)
        else:
            begun[key] = event
            yield from [_save(before, None)] if before else []
    yield from (_save(event, None) for event in begun.values())


def _save(begun: Mapping[str, Any] | None, ended: Mapping[str, Any] | None) -> Save:
    told = {**(begun or {}), **(ended or {})}
    return Save(
        step=told.get("step", -1),
        process=told["process"],
        begun=begun["at"] if begun else None,
        ended=ended["at"] if ended else None,
        how=ended["event"] if ended else "",
        begun_path=(begun or {}).get("path") or "",
        size=told.get("bytes"),
        a_step=told.get("micro_batches_a_step"),
        amid=told.get("micro_batches"),
        holds=tuple(told.get("holds") or ()),
        files=tuple(told.get("files") or ()),
        **{name: told[name] for name in AS_TOLD if told.get(name) is not None},
    )
