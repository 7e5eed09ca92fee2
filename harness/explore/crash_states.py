"""Makes the states of the disk that a crash can leave (*legal* states), and chooses a few states to restore from.

A state is the set of changes that reached the disk. A legal state after a crash during operation `j` holds all changes
that were durable before `j`, and no change of a later operation. With each change, a legal state also holds the changes
in `Change.after`. `every_state` makes all legal states, for a job with few file operations. `chosen_states` makes only
the kinds of states that published work found sufficient.

The choice of states (a prefix of the changes, all but one change, torn writes) follows Pillai et al., "All File Systems
Are Not Created Equal" (OSDI 2014). Of files with the same role, such as one file for each rank, only some are tried, as
in Alagappan et al., "Correlated Crash Vulnerabilities" (OSDI 2016)."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.explore.file_systems import Change, Entry

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class CrashState:
    """A state of the disk that a crash can leave. `during` is the number of the file operation during which the crash
    came. `made` is the number of changes by the operations up to and including `during`. `lost` holds the numbers of
    the changes that did not reach the disk. `why` says why this state is tried."""

    during: int
    made: int
    lost: frozenset[int]
    why: str

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(range(self.made)) - self.lost

    @property
    def key(self) -> int:
        """Returns a number that is equal for two states that keep the same changes."""
        made = self.made
        while made - 1 in self.lost:
            made -= 1
        return hash((made, frozenset(number for number in self.lost if number < made)))


class Crashes:
    """All states of the disk that a crash of one recorded job may leave on one kind of file system.

    `saved` holds, for each finished save, the number of the first file operation after the save. Only crashes after the
    first finished save are tried, and all changes up to the end of this save count as durable. `end` is the number of
    operations, and also stands for a crash after all operations."""

    def __init__(self, changes: Sequence[Change], saved: Sequence[int] = (), end: int = 0) -> None:
        self.changes = changes
        self._operations = [each.operation for each in changes]
        self.end = max(end, *saved, max(self._operations, default=-1) + 1)
        begin = min(saved, default=0)
        self._saved = sorted({*saved, self.end})
        self._durable = [-1 if each.operation < begin else each.durable for each in changes]
        for each in reversed(changes):  # what a durable change comes after is durable, too
            for before in each.after:
                self._durable[before] = min(self._durable[before], self._durable[each.number])
        # A crash during another operation leaves no state that a crash during the next of these cannot leave: between
        # them nothing becomes durable. The later crash is the harder one, as more saves are called finished by then.
        found = {durable for durable in self._durable if begin <= durable < self.end}
        self.moments = sorted(found | {self.end}, reverse=True)
        self._after_save = {save: min(each for each in self.moments if each >= save) for save in self._saved}

    @property
    def open_max(self) -> int:
        """Returns the largest number of changes that a single crash can either keep or lose."""
        durable = sorted(self._durable)
        return max(self.made(during) - bisect.bisect_left(durable, during) for during in self.moments)

    def made(self, during: int) -> int:
        return bisect.bisect_right(self._operations, during)

    def left_open(self) -> Iterator[tuple[int, list[int]]]:
        """Yields a pair for each file operation during which a crash is tried, the last operation first. Each pair
        holds the number of an operation, and the changes that a crash during this operation can keep or lose."""
        todo = sorted(range(len(self.changes)), key=self._durable.__getitem__)
        left: list[int] = []
        for during in self.moments:
            while todo and self._durable[todo[-1]] >= during:
                left.append(todo.pop())
            left = sorted(number for number in left if self._operations[number] <= during)
            yield during, left

    def lost_but_for(self, wanted: Iterable[int], left: Sequence[int]) -> frozenset[int]:
        """Returns which of the changes `left` are lost if a crash keeps the changes `wanted` and as few others as
        possible."""
        lost, todo = set(left), list(wanted)
        while todo:
            number = todo.pop()
            if number in lost:
                lost.discard(number)
                todo.extend(self.changes[number].after)
        return frozenset(lost)

    def lost_with(self, gone: Iterable[int], left: Sequence[int]) -> frozenset[int]:
        """Returns which changes are lost if a crash loses the changes `gone` and as few others as possible."""
        lost = set(gone)
        for number in left:
            if number not in lost and not lost.isdisjoint(self.changes[number].after):
                lost.add(number)
        return frozenset(lost)

    def every_state(self) -> Iterator[CrashState]:
        """Makes all states of the disk that a crash at any moment can leave. If a crash can keep or lose n changes,
        there are up to 2^n states."""
        for during, left in self.left_open():
            for lost in self._sets(left, frozenset()):
                yield CrashState(during, self.made(during), lost, "every legal state")

    def _sets(self, left: Sequence[int], lost: frozenset[int]) -> Iterator[frozenset[int]]:
        if not left:
            yield lost
            return
        first, rest = left[0], left[1:]
        yield from self._sets(rest, lost | {first})
        if lost.isdisjoint(self.changes[first].after):
            yield from self._sets(rest, lost)

    def chosen_states(self, names: Mapping[int, str]) -> Iterator[CrashState]:
        """Makes the few states of the disk to restore from, without repeating a state. `names` gives the path of each
        inode, by which files with the same role are recognised."""
        seen, alone = set[int](), set[int]()
        for during, left in self.left_open():
            units = self._units(left)
            told = _told_apart(units, names)
            lone = [each for each in units if self._counts_alone(each, during) and each.numbers[0] not in alone]
            alone.update(number for unit in lone for number in unit.numbers)
            for lost, why in itertools.chain(self._chosen(left, units, told), self._alone(left, lone)):
                state = CrashState(during, self.made(during), lost, why)
                if state.key not in seen:
                    seen.add(state.key)
                    yield state

    def _chosen(
        self, left: Sequence[int], units: Sequence[Unit], told: Sequence[Unit]
    ) -> Iterator[tuple[frozenset[int], str]]:
        yield frozenset(), "all reached the disk"
        yield frozenset(left), "only what is durable reached the disk"
        for unit in told:
            yield self.lost_with(unit.numbers, left), f"all but {unit.words}"
            yield self.lost_but_for(unit.numbers, left), f"only {unit.words} and what it comes after"
            for part, which in unit.torn():
                yield self.lost_with(part, left), f"all but {which} of {unit.words}"
        for end in range(1, len(units)):
            rest = self.lost_but_for([number for unit in units[:end] for number in unit.numbers], left)
            yield rest, f"all up to {units[end - 1].words}"
            for unit in told:
                if unit.numbers[-1] not in rest:
                    lost = self.lost_with({*rest, *unit.numbers}, left)
                    yield lost, f"all up to {units[end - 1].words} but {unit.words}"

    def _alone(self, left: Sequence[int], units: Iterable[Unit]) -> Iterator[tuple[frozenset[int], str]]:
        for unit in units:
            save_end = self._save_end(unit)
            later = (number for number in left if self._operations[number] >= save_end)
            yield self.lost_with({*later, *unit.numbers}, left), f"all up to the end of its save but {unit.words}"

    def _save_end(self, unit: Unit) -> int:
        return self._saved[bisect.bisect_right(self._saved, unit.first.operation)]

    def _counts_alone(self, unit: Unit, during: int) -> bool:
        """Returns False if the crash comes so late that a later save hides the loss of the changes in `unit`."""
        return during <= self._after_save[self._save_end(unit)]

    def _units(self, left: Sequence[int]) -> list[Unit]:
        found = list[Unit]()
        latest: dict[int, Unit] = {}
        for number in left:
            change = self.changes[number]
            inode = change.inode
            if inode is None:
                latest.clear()  # content before a change of names and content after it are two units
                found.append(Unit([number], change))
            elif inode in latest:
                latest[inode].numbers.append(number)
            else:
                latest[inode] = Unit([number], change)
                found.append(latest[inode])
        return found


@dataclass
class Unit:
    """Changes of the disk, such as the writes of one file, that are kept or lost together in the states to try."""

    numbers: list[int]
    first: Change
    words: str = ""

    def torn(self) -> Iterator[tuple[Sequence[int], str]]:
        """Yields parts of a file's new content that a crash may lose while all other parts reach the disk."""
        count = len(self.numbers)
        if self.first.inode is None or count < 2:
            return
        yield self.numbers[-1:], "the last part"
        yield self.numbers[:1], "the first part"
        yield self.numbers[count // 2 :], "the second half"
        if count > 2:
            yield self.numbers[count // 2 : count // 2 + 1], "a part in the middle"


def _told_apart(units: Sequence[Unit], names: Mapping[int, str]) -> list[Unit]:
    alike: dict[str, list[Unit]] = {}
    for unit in units:
        unit.words = _in_words(unit, names)
        alike.setdefault(_NUMBER.sub("#", unit.words), []).append(unit)
    chosen = {id(unit) for row in alike.values() for unit in (row[0], row[-1])}
    return [unit for unit in units if id(unit) in chosen]


def _in_words(unit: Unit, names: Mapping[int, str]) -> str:
    if unit.first.inode is not None:
        return f"the data of {names.get(unit.first.inode, 'a file')}"
    entries = [part for part in unit.first.parts if isinstance(part, Entry)]
    shown = [names.get(part.inode, part.name) if part.inode is not None else part.name for part in entries]
    if len(entries) == 2 and entries[0].inode is None:
        return f"the rename of {entries[0].name} to {entries[1].name}"
    return f"the name {shown[-1]}" if entries[-1].inode is not None else f"the removal of {shown[-1]}"
