"""Makes the legal states of the disk after a crash, and chooses the few that are worth a restore.

A state is the set of changes that reached the disk. A crash during operation `j` is legal with every set that holds the
changes durable before `j`, holds no change of a later operation, and holds with a change all that it comes after.
`every_state` makes all of them, for a small recording. `chosen_states` makes those that the published explorers found
to be enough, and says for each why it is tried.

Sources: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014): prefixes, one change left out, torn
writes. Alagappan et al., "Correlated Crash Vulnerabilities" (OSDI 2016): files that play the same part count once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.explore.file_systems import Change, Entry

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class CrashState:
    """A state of the disk that a crash may leave: the changes that had reached the disk by then. `during` is the number
    of the operation during which the crash came.

    `kept` holds the numbers of the changes that reached the disk. `why` says why this state is tried.
    """

    during: int
    kept: frozenset[int]
    why: str


class Crashes:
    """All states of the disk that a crash of one recorded job may leave on one kind of file system.

    `begin` is the first operation during which a crash is tried. All changes before it are durable. `end` is the
    number of operations: a crash during it comes after all of them.
    """

    def __init__(self, changes: Sequence[Change], begin: int = 0, end: int = 0) -> None:
        self.changes = changes
        self.begin = begin
        self.end = max(end, max((each.operation for each in changes), default=-1) + 1)
        self._durable = {each.number: -1 if each.operation < begin else each.durable for each in changes}
        for each in reversed(changes):  # what a durable change comes after is durable, too
            for before in each.after:
                self._durable[before] = min(self._durable[before], self._durable[each.number])
        self._before = {each.number: each.after for each in changes}

    def forced(self, during: int) -> frozenset[int]:
        """Returns the changes of the disk that are sure to survive a crash during this operation."""
        return frozenset(number for number, durable in self._durable.items() if durable < during)

    def moments(self) -> list[int]:
        """Returns the operations during which a crash must be tried, the last one first.

        A crash during another operation leaves no state that a crash during the next of these cannot leave: between
        them nothing becomes durable. The later crash is the harder one, as more saves are called finished by then.
        """
        found = {durable for durable in self._durable.values() if self.begin <= durable < self.end}
        return sorted(found | {self.end}, reverse=True)

    def left_open(self, during: int) -> list[int]:
        """Returns the changes of the disk that a crash during this operation may keep or lose, in order."""
        forced = self.forced(during)
        return [each.number for each in self.changes if each.operation <= during and each.number not in forced]

    def with_all_before(self, wanted: Iterable[int], forced: frozenset[int]) -> frozenset[int]:
        """Returns the smallest set of changes that holds `wanted` and that a crash can leave."""
        kept, todo = set(forced), list(wanted)
        while todo:
            number = todo.pop()
            if number not in kept:
                kept.add(number)
                todo.extend(self._before[number])
        return frozenset(kept)

    def without(self, lost: Iterable[int], among: Sequence[int], forced: frozenset[int]) -> frozenset[int]:
        """Returns the largest set of the changes `among` that holds none of `lost` and that a crash can leave. `among`
        is in order."""
        gone = set(lost) - forced
        for number in among:
            if number not in gone and not gone.isdisjoint(self._before[number]):
                gone.add(number)
        return forced | (frozenset(among) - gone)

    def every_state(self) -> Iterator[CrashState]:
        """Makes all states of the disk that crashes can leave. Their number grows as two to the power of the open
        changes."""
        for during in self.moments():
            forced = self.forced(during)
            for kept in self._sets(self.left_open(during), forced):
                yield CrashState(during, kept, "every legal state")

    def _sets(self, left: Sequence[int], kept: frozenset[int]) -> Iterator[frozenset[int]]:
        if not left:
            yield kept
            return
        first, rest = left[0], left[1:]
        yield from self._sets(rest, kept)
        if self._before[first] <= kept:
            yield from self._sets(rest, kept | {first})

    def chosen_states(self, names: Mapping[int, str]) -> Iterator[CrashState]:
        """Makes the few states of the disk, each once, from which a restore is tried. `names` gives the path of each
        inode, to tell its part."""
        seen = set[frozenset[int]]()
        for during in self.moments():
            for kept, why in self._chosen_at(during, names):
                if kept not in seen:
                    seen.add(kept)
                    yield CrashState(during, kept, why)

    def _chosen_at(self, during: int, names: Mapping[int, str]) -> Iterator[tuple[frozenset[int], str]]:
        forced, left = self.forced(during), self.left_open(during)
        yield forced | frozenset(left), "all reached the disk"
        yield forced, "only what is durable reached the disk"
        units = self._units(left)
        told = _told_apart(units, names)
        for unit in told:
            yield self.without(unit.numbers, left, forced), f"all but {unit.words}"
            yield self.with_all_before(unit.numbers, forced), f"only {unit.words} and what it comes after"
            for part, which in unit.torn():
                yield self.without(part, left, forced), f"all but {which} of {unit.words}"
        for end in range(1, len(units)):
            before = [number for unit in units[:end] for number in unit.numbers]
            prefix = self.with_all_before(before, forced)
            yield prefix, f"all up to {units[end - 1].words}"
            for unit in told:
                if unit.numbers[-1] in prefix:
                    among = [number for number in left if number in prefix]
                    yield (
                        self.without(unit.numbers, among, forced),
                        f"all up to {units[end - 1].words} but {unit.words}",
                    )

    def _units(self, left: Sequence[int]) -> list[Unit]:
        """Groups changes of the disk: each change of names alone, each unbroken row of changes of one file's content
        together."""
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
        """Makes the parts of a file's new content that a crash may lose while it keeps the other parts."""
        count = len(self.numbers)
        if self.first.inode is None or count < 2:
            return
        yield self.numbers[-1:], "the last part"
        yield self.numbers[:1], "the first part"
        yield self.numbers[count // 2 :], "the second half"
        if count > 2:
            yield self.numbers[count // 2 : count // 2 + 1], "a part in the middle"


def _told_apart(units: Sequence[Unit], names: Mapping[int, str]) -> list[Unit]:
    """Drops groups of changes that play the same part as others: of files whose names differ only in numbers, the first
    and the last stay."""
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
