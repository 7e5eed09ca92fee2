"""Finds the saves that the processes of a run logged, and the damage that faults did to saves.

A save can be looked up by its step, by its path and by its time.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from harness.evidence.by_time import Window, union
from harness.evidence.work import Work
from harness.judge.facts import tellers
from harness.judge.facts.known import Word
from harness.judge.facts.missing_or_bad_saves import NoSave, bad, missing
from harness.judge.facts.store import Save as Save
from harness.judge.facts.store import Store, last_name
from harness.timeline.lookups import NEVER, first_from, grouped, last_by
from harness.timeline.save_events import COMMITTED, FAILED, PART, PUBLISHED, STARTED
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import FaultRecord, Ints, Timeline

T = TypeVar("T")
AS_TOLD = "path", "tensors", "kind", "duration_ns", "write_ns", "content"  # fields of events and saves


@dataclass(frozen=True)
class Damage:
    """Damage that a fault did to a file of a complete checkpoint."""

    fault: str
    at: int
    anew: Word  # when a new checkpoint took its place, as the trainer reported or the harness saw
    unseen_until: int  # when the harness saw a new checkpoint; as reported if it never saw any there
    step: int | None
    names: frozenset[str]  # names that a restore may use for the checkpoint
    copies: bool  # True if other checkpoints hold the same step
    tensor_bytes: int  # lost or changed bytes of tensors
    how: str
    path: str
    sealed: bool = False  # digests are right, so that only training shows the damage
    by = tellers.SEEN

    def is_named(self, place: str) -> bool:
        return not self.names.isdisjoint(place.split("/"))


class Newest(Generic[T]):
    """Finds the item, such as a save, that has the highest step of all items before a given time."""

    def __init__(self, things: Iterable[tuple[int, int, T]]):  # when, step, what
        self._things = sorted(things, key=lambda each: each[0])
        self._at = [at for at, _, _ in self._things]
        self._highest = list(itertools.accumulate((step for _, step, _ in self._things), max))

    def before(self, moment: int, good: Callable[[T], bool], least: int = 0) -> T | None:
        """Returns the item with the highest step (at least `least`) before `moment` that passes the test `good`."""
        found: T | None = None
        for place in range(bisect.bisect_left(self._at, moment) - 1, -1, -1):
            if self._highest[place] < least:
                break
            _, step, what = self._things[place]
            if step >= least and good(what):
                found, least = what, step + 1
        return found


class Saves:
    """The saves of a run, in order of their first log entries. `usual` holds the saves of the fault-free run."""

    by = tellers.FAULT_FREE_SAVES

    def __init__(self, run: Timeline, usual: "Saves | None" = None):
        self.run, self._usual = run, usual

    @cached_property
    def all(self) -> Sequence[Save]:
        """Returns all saves in order of time, one for each process that began, committed or failed to make the save."""
        return sorted(_joined(self.run.checkpoints), key=lambda save: save.at)

    @cached_property
    def whole(self) -> Sequence[Save]:
        """Returns committed saves in order of their commits. Only the last rank's commit completes a save."""
        return sorted((save for save in self.all if save.how == COMMITTED), key=lambda save: save.last_at)

    @cached_property
    def store(self) -> Store:
        """Returns the checkpoints that the harness itself saw in the checkpoint store of the run."""
        return Store(self.run, self.whole, self.sound_at, self._usual.store if self._usual is not None else None)

    @cached_property
    def missing(self) -> Sequence[NoSave]:
        """Returns committed saves that were missing from the store, or were removed from the store too early."""
        return list(missing(self.store, self._is_watched))

    @cached_property
    def none(self) -> Mapping[Save, NoSave]:
        """Maps each committed save that is missing or bad to the reason why it does not count as a save."""
        found: dict[Save, NoSave] = {}
        for none in itertools.chain(self.missing, bad(self.store)):
            found.setdefault(none.save, none)
        return found

    def _is_watched(self, series: str) -> bool:
        usual = self._usual
        if usual is not None and usual.store.sights and any(each.save.series == series for each in usual.missing):
            return False
        known = usual if usual is not None and usual.store.sights else self
        cut = self.run.outcome is None  # the harness was killed or its log cut
        return not (self.run.unseen or cut) and any(save.series == series for save in known.store.sights)

    @cached_property
    def seen_steps(self) -> frozenset[int] | None:
        """Returns the steps of all saves seen in the store, or `None` if saves cannot be seen or a step is unknown."""
        left = (self.store.left or {}).values()
        known = {each.step for each in self.store.seen} | {each.get("step") for each in left}
        watched = any(map(self._is_watched, {save.series for save in self.store.whole}))
        return None if None in known or not watched else frozenset(step for step in known if step is not None)

    def never_seen(self, step: int, since: int, until: int) -> bool:
        """Returns True if the harness should have seen a save of `step` by the time `until`, and did not."""
        if self.seen_steps is None or self.store.is_hidden(since, until):
            return False
        seen = self.store.by_step.get(step, ())
        return seen[0].at > until + self.store.late_ns(max) if seen else step not in self.seen_steps

    @property
    def left_untold(self) -> int:
        """Returns the step of the newest save left in the store, or 0 if the log reports a committed save of this step
        or of a later step."""
        newest = max(self.store.left_steps(), default=0)
        return newest if self.whole and newest > max(save.step for save in self.whole) else 0

    @cached_property
    def good(self) -> Sequence[Save]:
        """Returns committed saves that are neither missing nor bad. If the log has no saves, the saves that the harness
        saw are returned."""
        seen = () if self.run.checkpoints else self.seen
        return [*seen, *(save for save in self.whole if save not in self.none)]

    @cached_property
    def seen(self) -> Sequence[Save]:
        """Returns the saves that the harness saw. Returns nothing if the harness saw a save before the job had done the
        saved step."""
        told = (each for each in self.store.seen if each.step is not None)
        saves = [Save(each.step or 0, -1, None, each.at, PUBLISHED, each.path) for each in told]
        work = Work(self.run)
        return saves if all(save.step <= work.furthest(save.at) for save in saves) else []

    @cached_property
    def never_sound(self) -> Mapping[int, NoSave]:
        """Maps each step that has only missing or bad saves to one of these saves."""
        good = {save.step for save in self.good}
        return {none.save.step: none for none in self.none.values() if none.save.step not in good}

    @cached_property
    def steps(self) -> Ints:
        """Returns, in ascending order, the steps with a save that is neither missing nor bad."""
        return np.unique(np.array([save.step for save in self.good if save.step > 0], np.int64))

    @property
    def open(self) -> Sequence[Save]:
        """Returns saves with a logged begin but no logged end, if their process began another step after that begin."""
        return [save for save, end, step in self._followed if save.step >= 0 and end == NEVER > step]

    @property
    def punctual(self) -> frozenset[int]:
        """Returns the ranks that ended each of their saves before they began their next step."""
        ranks = self.run.processes
        late = {ranks[save.process].rank for save, end, step in self._followed if end >= step < NEVER}
        return frozenset(ranks[save.process].rank for save, _, _ in self._followed) - late

    @cached_property
    def _followed(self) -> Sequence[tuple[Save, int, int]]:
        order, places = self.run.rows_by_process
        ended = sorted((save for save in self.all if save.how), key=attrgetter("last_at"))
        ends = grouped(((save.process, save.step), save.last_at) for save in ended)
        begun = grouped((save.process, save) for save in self.all if save.begun is not None and save.process >= 0)
        found = []
        for process, mine in begun.items():
            begins = sorted(self.run.steps.begin[order[places[process] : places[process + 1]]].tolist())
            for save in mine:
                end = first_from(ends.get((process, save.step), ()), save.at)
                found.append((save, end, first_from(begins, save.at + 1)))
        return found

    def of_step(self, step: int, until: int) -> bool:
        """Returns True if a save of `step` was logged by the time `until`, and its last entry is no failure."""
        return last_by(self._words.get(step, []), until) not in (None, FAILED)

    def only_begun(self, step: int, until: int) -> Word | None:
        """Returns when a save of `step` was first logged, or `None` if its commit was logged by the time `until`."""
        words = self._words.get(step, [])
        done = any(what in (COMMITTED, PART) for at, what in words if at <= until)
        return Word(words[0][0]) if words and not done else None

    def other_at_path(self, path: str, step: int, until: int) -> int | None:
        """Returns the step last saved at `path` by `until`, or `None` if `step` itself had been saved there, too. If no
        save was at `path`, saves of the same file name count, because a node may fetch a copy from an object store."""
        path = path.rstrip("/")
        path = path if path in self._by_path else last_name(path)
        last = last_by(self._by_path.get(path, []), until)
        return last.step if last and self._first_at_path.get((path, step), NEVER + 1) > until else None

    def elsewhere(self, path: str, until: int) -> str:
        """Returns the path of the last save, up to time `until`, that has the file name of `path`. The result is empty
        if a save was at `path` itself."""
        known = not path.startswith("/") or path.rstrip("/") in self._by_path
        last = last_by(self._by_path.get(last_name(path), []), until)
        return last.path if last and not known and last.path.startswith("/") else ""

    def content_of(self, step: int | None, path: str, until: int) -> str:
        """Returns the content digest that was committed by the time `until` for `step` at `path`, or else at any path.
        The result is empty if digests differ."""
        known = -1 if step is None else step
        at, content = self._contents.get((known, path)) or self._contents.get((known, ""), (NEVER, ""))
        return content if at <= until else ""

    @cached_property
    def parts(self) -> Mapping[int, Mapping[int, Mapping[str, str]]]:
        """Maps each step, then each rank, then each path to the digest of the tensors that the rank committed there."""
        found: dict[int, dict[int, dict[str, str]]] = {}
        for save in (save for save in self.all if save.told and save.process >= 0):
            rank = self.run.processes[save.process].rank
            found.setdefault(save.step, {}).setdefault(rank, {})[save.path] = save.tensors
        return found

    @cached_property
    def damage(self) -> Mapping[str, Sequence[Damage]]:
        """Maps each fault's id to the damage that the fault did to checkpoints."""
        return {fault.id: [self._damage(fault, told) for told in fault.damaged] for fault in self.run.faults}

    def sound_at(self, moment: int, outages: bool = True) -> Callable[[Save], bool]:
        """Returns a function that returns True for a save that no fault until time `moment` can have damaged. A fault
        that only disturbs the store can damage only a save made during the fault. If `outages` is False, faults that
        only disturb the store are ignored."""
        acted = [each for each in self._spoilt if each[0] <= moment and (outages or each[1] == -NEVER)]

        def sound(save: Save) -> bool:
            begun, ended, step = self._begun(save), save.last_at, save.step
            return not any(
                since <= ended and begun <= until and step in (of or {step}) for _, since, until, of in acted
            )

        return sound

    def _begun(self, save: Save) -> int:
        place = bisect.bisect(self.run.epochs, save.at, key=attrgetter("begin"))
        since = self.run.epochs[place - 1].begin if place else 0
        told = (at for at, _ in self._words.get(save.step, ()) if at >= since)
        return since if save.begun is None else min(save.begun, next(told, NEVER))

    @property
    def outages(self) -> Sequence[Window]:
        """Returns the time windows in which faults disturbed the store without damage to earlier saves."""
        return union((since, until) for _, since, until, _ in self._spoilt if since != -NEVER)

    @cached_property
    def _spoilt(self) -> Sequence[tuple[int, int, int, frozenset[int | None]]]:
        """Returns tuples (time of the fault, earliest end of a damaged save, latest begin of a damaged save, damaged
        steps). An empty set of steps stands for all steps."""
        found, margin_ns = list[tuple[int, int, int, frozenset[int | None]]](), self.run.uncertainty_ns
        for fault in (fault for fault in self.run.faults if fault.spoils and fault.injected is not None):
            at, steps = acted_at(fault), frozenset(damage.step for damage in self.damage[fault.id])
            since = -NEVER if steps or fault.damages else at - margin_ns
            known = steps if None not in steps else frozenset()
            found.append((at, since, (at if known else fault.healed or NEVER) + margin_ns, known))
        return found

    def _damage(self, fault: FaultRecord, told: Mapping[str, Any]) -> Damage:
        names, at = frozenset(told.get("names") or ()), told["at"]
        step = told["step"] if "step" in told else self._last_of(names, at)
        words = [] if step is None else self._words.get(step, [])
        begun = [at for at, what in words if what == STARTED]  # a later commit belongs to the save before
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
            sealed=bool(told.get("sealed")),
        )

    @cached_property
    def _published(self) -> Mapping[object, Sequence[Mapping[str, Any]]]:
        return grouped((event.get("path"), event) for event in self.run.published)

    @cached_property
    def _contents(self) -> Mapping[tuple[int, str], tuple[int, str]]:
        """Maps each pair (step, path) to the time of the first commit and the digest of the committed content. The path
        "" stands for all paths. The digest is empty if commits of the same step and path differ in content."""
        found: dict[tuple[int, str], tuple[int, str]] = {}
        for save in (save for save in self.all if save.told and save.content):
            for key in {(save.step, ""), (save.step, save.path)}:
                at, content = found.get(key, (save.last_at, save.content))
                found[key] = min(at, save.last_at), content if content == save.content else ""
        return found

    @cached_property
    def _words(self) -> Mapping[int, Sequence[tuple[int, str]]]:
        return grouped((int(e["step"]), (e["at"], e["event"])) for e in self.run.checkpoints if "step" in e)

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[tuple[int, Save]]]:
        told = [save for save in self.all if save.path and save.step >= 0]
        return grouped((key, (save.at, save)) for save in told for key in {save.path.rstrip("/"), last_name(save.path)})

    @cached_property
    def _first_at_path(self) -> Mapping[tuple[str, int], int]:
        return {(path, save.step): at for path, told in self._by_path.items() for at, save in reversed(told)}

    def _last_of(self, names: frozenset[str], before: int) -> int | None:
        mine = [(save.last_at, save.step) for save in self.all if save.told and names & {*save.path.split("/")}]
        return max((each for each in mine if each[0] < before), default=(0, None))[1]


def _joined(events: Iterable[Mapping[str, Any]]) -> Iterator[Save]:
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
