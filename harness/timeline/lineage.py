"""Derives from an event log when each worker process ran, in which process groups, and which steps were not rolled
back.

A `Life` is one worker process, and a `World` one process group. A process that outlives another process of its group
may join a new process group, at a `rendezvous` event. An `Epoch` is a training period: the steps of one process group
until a rollback, or until a new group takes over. A `Stretch` is the steps of one process in one training period. A
step is *complete* when all ranks of the process group that write a log have done the step. The *lineage* is the chain
of training periods that led to the job's final state: each period started from a checkpoint of the period before. A
step *survives* if the final state includes the step; otherwise the step was rolled back.
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.log.reading import COLUMNS, Column, Columns, Log, Writer
from harness.node.emitter import EXIT_LEFT
from harness.timeline import joined_steps
from harness.timeline.joined_steps import step_of as step_of
from harness.timeline.lookups import NEVER as NEVER
from harness.timeline.lookups import first_from, grouped

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Key = tuple[str, int]  # node and incarnation
_TURN_BITS = 32
_TIES_MAX = 1000
_JUMPS_MAX = 10_000  # jumps kept of one stretch; a process that jumps more often tells no steps
CLEAN_CODES = (0, EXIT_LEFT)


@dataclass(eq=False)
class Life:
    """One worker process. The process began to exit at the time `leaving` (ns), and had ended by `gone`."""

    index: int
    writer: Writer
    rank: int
    local_rank: int
    key: Key
    pid: int
    world_size: int
    started: int
    joins: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # parallel to `joins`: the ranks of the world that it joined
    worlds: list[int] = field(default_factory=list)  # parallel to `joins`
    told_joins: bool = False  # by `rendezvous` events; else its first act counts as its join
    restores: list[dict[str, Any]] = field(default_factory=list)  # `restored` events
    exiting: dict[str, Any] | None = None
    exit_event: dict[str, Any] | None = None  # the end that the launcher saw
    gone: int = NEVER
    first_step: int | None = None  # number of the first step it did
    last_step: int = 0  # number of the last step it did
    last_step_end: int = -NEVER
    cut: bool = False  # its log lost its end, though nothing killed it
    repeated: Bools | None = None  # rows that repeat an earlier row; `None`: no row does
    apart: bool = False  # its steps count from 1 after a state of an unknown step, or are not observed

    @property
    def restored(self) -> dict[str, Any] | None:
        return self.restores[0] if self.restores else None

    @property
    def step_ends(self) -> Ints:
        """Returns the end times (ns) of the process's steps. Raises `KeyError` after `gather` has moved all steps into
        one table."""
        return self.writer.steps["end"]

    @property
    def last_seen(self) -> int:
        last_event = self.writer.events[-1]["at"] if self.writer.events else self.started
        return max(self.started, last_event, self.last_step_end)

    @property
    def last_useful(self) -> int:
        return max(self.started, self.last_step_end, *self.joins, *(int(event["at"]) for event in self.restores))

    @property
    def leaving(self) -> int:
        return min(self.gone, self.exiting["at"]) if self.exiting else self.gone

    def join(self, at: int, size: int, world: int) -> None:
        place = bisect.bisect(self.joins, at)
        for told, value in ((self.joins, at), (self.sizes, size), (self.worlds, world)):
            told.insert(place, value)

    def world_at(self, moment: int) -> int:
        """Returns the index of the process's group at time `moment`, or -1 if the process never joined a group. Before
        the first join, the index of the first group is returned."""
        return self.worlds[max(bisect.bisect_right(self.joins, moment) - 1, 0)] if self.worlds else -1


@dataclass
class World:
    """One process group. `members` maps each rank to its process. `joined` is the time at which the last member
    joined."""

    size: int
    members: dict[int, Life] = field(default_factory=dict)
    joined: int = 0
    first_gone: int = NEVER  # when the first of its members was gone
    unheard: int = 0  # ranks that left no log at all
    renumbered: bool = False  # a survivor of an earlier world takes part: two may have started as the same rank

    @property
    def whole(self) -> bool:
        return len(self.members) == self.size

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(sorted(life.index for life in self.members.values()))

    @property
    def nodes(self) -> set[str]:
        return {life.key[0] for life in self.members.values()}


@dataclass(frozen=True)
class Epoch:
    """A training period: steps `first` to `last` of one process group. The steps after step `kept` were rolled back."""

    world: int  # row of its world
    size: int  # ranks of the world
    processes: tuple[int, ...]  # its members, as rows in Timeline.processes
    first: int  # first step
    last: int  # last step
    begin: int  # end of its first row
    kept: int  # last step that was not rolled back
    unheard: int = 0  # ranks of the world that left no log at all


@dataclass(frozen=True)
class Stretch:
    """The steps `first` to `last` that one process did in one training period. `before` is the previous step of the
    process, and `restored` the restore event between `before` and `first`. `later` pairs each later restore event with
    the step that follows the restore. `stride` is the smallest gap between step numbers; `jumps` holds the steps around
    larger gaps."""

    process: int  # row in Timeline.processes
    epoch: int  # row in Timeline.epochs
    first: int  # first step
    last: int  # last step
    rows: int  # number of its steps
    begin: int  # end of its first step
    end: int  # end of its last step
    before: int | None
    restored: Mapping[str, Any] | None
    stride: int
    jumps: tuple[tuple[int, int], ...]
    later: tuple[tuple[Mapping[str, Any], int], ...] = ()


@dataclass(frozen=True)
class Progress:
    """The complete steps (done by every rank) as columns, sorted by `end`, the time at which the last rank ended the
    step."""

    step: Ints
    begin: Ints  # when the first rank began it
    end: Ints
    epoch: Ints  # row in the epochs
    world_size: Ints

    def __len__(self) -> int:
        return len(self.step)


def find_lives(log: Log, planned_world_size: int) -> list[Life]:
    """Returns the worker processes that left an event file, in order of start. If a file exists twice, the longer copy
    counts."""
    found: list[Life] = []
    originals = _originals(log)
    joined_steps.join(originals)
    for writer in originals:
        header = writer.header
        rank = int(header.get("rank", 0))
        life = Life(
            index=len(found),
            writer=writer,
            rank=rank,
            local_rank=int(header.get("local_rank", rank)),
            key=(str(header.get("node", header.get("host"))), int(header.get("incarnation", 1))),
            pid=int(header.get("pid", 0)),
            world_size=int(header.get("world_size", planned_world_size)),
            started=header["at"],
        )
        _read_life(life)
        found.append(life)
    return found


def _originals(log: Log) -> list[Writer]:
    found: dict[str, Writer] = {}
    for writer in log.writers:
        if writer.role == "trainer":
            said = repr(sorted(writer.header.items()))
            held = found.get(said)
            length = len(writer.steps["end"]) + len(writer.events)
            if held is None or length > len(held.steps["end"]) + len(held.events):
                found[said] = writer
    return sorted(found.values(), key=lambda w: (w.header["at"], w.name))


def _read_life(life: Life) -> None:
    exits = list[dict[str, Any]]()
    for event in life.writer.events:
        match event.get("event"):
            case "rendezvous":
                life.world_size = int(event.get("world_size", life.world_size))
                life.joins.append(event["at"])
                life.sizes.append(life.world_size)
            case "restored":
                life.restores.append(event)
            case "exiting":
                exits.append(event)
    life.apart = joined_steps.apart(life.restores, life.writer.steps) or any(
        event["event"] == "observer.failed" and event.get("signal") == "steps" for event in life.writer.events
    )
    life.told_joins = bool(life.joins)
    if len(life.step_ends):
        life.first_step, life.last_step = (int(life.writer.steps["step"][place]) for place in (0, -1))
        life.last_step_end = int(life.step_ends[-1])
        life.repeated = _logged_before(life.writer.steps["step"], life.step_ends)
    if exits:  # the last one counts, at the time of the first one if a step ended after that
        told = exits[0] if len(life.step_ends) and exits[0]["at"] < life.last_step_end else exits[-1]
        life.exiting = exits[-1] | {"at": told["at"]}
    if not life.joins:  # a trainer that does not tell when its process group was ready
        first_step = [int(life.step_ends[0])] if len(life.step_ends) else []
        life.joins = [event["at"] for event in life.restores[:1]] or first_step
        life.sizes = [life.world_size for _ in life.joins]


def _logged_before(step: Ints, end: Ints) -> Bools | None:
    if not (np.diff(step) <= 0).any():
        return None
    order = np.lexsort((step, end))
    again = np.zeros(len(step), np.bool_)
    again[order[1:]] = (np.diff(step[order]) == 0) & (np.diff(end[order]) == 0)
    return again if again.any() else None


def match_exits(lives: Sequence[Life], exits: Sequence[dict[str, Any]]) -> None:
    by_place = grouped(((life.key, life.local_rank), life) for life in lives)
    by_pid = grouped(((life.key, life.pid), life) for life in lives)
    for event in exits:
        key = event["key"]
        candidates = by_pid.get((key, event.get("pid", -1))) or by_place.get((key, event.get("local_rank", -1)), [])
        running = [life for life in candidates if life.started <= event["at"] and life.exit_event is None]
        if running:
            running[-1].exit_event = event


def find_gone(lives: Sequence[Life], node_gone: Mapping[Key, int], killed: Mapping[tuple[Key, int], list[int]]) -> None:
    """Sets the end (`gone`) of each process: the earliest of the loss of its node, the start of its successor, and its
    logged exit or kill."""
    successor: dict[int, int] = {}
    latest: dict[tuple[Key, int], Life] = {}
    for life in lives:
        place = (life.key, life.local_rank)
        if place in latest:
            successor[latest[place].index] = life.started
        latest[place] = life
    for life in lives:
        ends = [node_gone.get(life.key, NEVER), successor.get(life.index, NEVER)]
        if life.exit_event:
            ends.append(life.exit_event["at"])
        elif life.exiting:
            ends.append(life.exiting["at"])
        else:
            ends += [at for at in killed.get((life.key, life.rank), []) if at >= life.last_seen][:1]
        life.gone = max(min(ends), life.last_useful)


def find_cut(lives: Sequence[Life], codes: Mapping[Key, int]) -> None:
    """Marks each process that exited without an error, but whose log is incomplete. A log is incomplete if it ends
    within a line, or before the job's last step and without the exit event that its header promises. `codes` maps a
    node to the exit code of its command, which replaces the unknown exit code of the node's last worker."""
    last = {(life.key, life.local_rank): life for life in lives}
    over = max((life.last_step_end for life in lives), default=0)
    furthest = max((life.last_step for life in lives), default=0)
    for life in lives:
        stayed = life.last_step < furthest and (life.exit_event is None or life.exit_event["at"] >= over)
        told = life.exit_event or life.exiting
        alone = last[life.key, life.local_rank] is life
        ended = told.get("code", 0) if told else codes.get(life.key) if alone else None
        wordless = stayed and life.exiting is None and "exits" in (life.writer.header.get("tells") or ())
        life.cut = (life.writer.torn or wordless) and ended in CLEAN_CODES


def form_worlds(lives: Sequence[Life]) -> list[World]:
    """Reconstructs the process groups from the logged joins. A join begins a new process group if the newest group is
    full, differs in size from the logged size, already has the rank, or has lost a member."""
    joins = sorted((at, life.index, order) for life in lives for order, at in enumerate(life.joins))
    worlds: list[World] = []
    for at, index, order in joins:
        life = lives[index]
        if not worlds or not _fits(worlds[-1], life, order, at):
            worlds.append(World(life.sizes[order]))
        world = worlds[-1]
        free = (rank for rank in (life.rank, *range(world.size)) if rank not in world.members)
        world.members[next(free)] = life
        world.joined, world.renumbered = at, world.renumbered or order > 0
        world.first_gone = min(world.first_gone, life.gone)
        life.worlds.append(len(worlds) - 1)
    worlds = _shrunk(worlds, lives)
    _carry_over(worlds, lives)
    for world in worlds:
        world.unheard = _unheard(world, lives)
    return worlds


def groups_of_two_names(lives: Sequence[Life]) -> list[str]:
    names: dict[int, dict[str, int]] = {}
    for life in lives:
        told = {e["at"]: e.get("world") for e in life.writer.events if e.get("event") == "rendezvous"}
        for number, at in zip(life.worlds, life.joins, strict=False):
            if name := told.get(at):
                names.setdefault(number, {}).setdefault(str(name), life.rank)
    split = next((each for _, each in sorted(names.items()) if len(each) > 1), {})
    first = sorted((rank, name) for name, rank in split.items())[:2]
    told_by = (f"rank {rank} was in {name!r}" for rank, name in first)
    return [f"ranks of one world were in different groups: {' and '.join(told_by)}"] if split else []


def groups_of_two_sizes(lives: Sequence[Life]) -> list[str]:
    """Returns a message about the first worker that logged one group size at its start, but joined only groups of other
    sizes. A worker of an elastic job may join a smaller group before a group of the logged size."""
    for life in lives:
        told = life.writer.header.get("world_size")
        if told is not None and life.told_joins and life.sizes and told not in life.sizes:
            size = f"a group of {told} when it started, and of {life.sizes[0]} when it met the others"
            return [f"rank {life.rank} on {life.key[0]} told of {size}"]
    return []


def impossible_places(lives: Sequence[Life]) -> list[str]:
    usual: dict[tuple[Any, ...], int] = {}
    taken: dict[tuple[Any, ...], int] = {}
    for life in lives:
        told = [event.get("axes") or () for event in life.writer.events if event.get("event") == "coordinates"]
        axes = told[-1] if told else ()
        sizes = {each["axis"]: each["size"] for each in axes if each["axis"] != "ep"}
        held = usual.setdefault((life.rank, tuple(life.sizes), frozenset(sizes)), math.prod(sizes.values()))
        beyond = any(each["index"] >= each["size"] for each in axes)
        if axes and len(life.worlds) == 1:  # a rank may tell no new place in a new world
            place = life.worlds[0], frozenset((each["axis"], each["index"], each["size"]) for each in axes)
            taken[place] = taken.get(place, 0) + 1
            beyond |= taken[place] > max(1, life.sizes[0] // max(1, held))
        if beyond or len({each["axis"] for each in axes}) < len(axes) or math.prod(sizes.values()) != held:
            places = ", ".join(f"{each['axis']} {each['index']} of {each['size']}" for each in axes)
            return [f"rank {life.rank} on {life.key[0]} tells a place that cannot be in its world: {places}"]
    return []


def _fits(world: World, life: Life, order: int, at: int) -> bool:
    """Returns True if a process can have joined this group. If a member of an earlier group has joined the group, ranks
    are not compared, because they may have been reassigned."""
    if world.whole or life.sizes[order] != world.size or world.first_gone <= (at if order else life.started):
        return False
    renumbered = order > 0 or world.renumbered
    return life not in world.members.values() if renumbered else life.rank not in world.members


def _unheard(world: World, lives: Sequence[Life]) -> int:
    if world.whole:
        return 0
    until = max(life.last_step_end for life in world.members.values())
    ranks = {life.rank for life in world.members.values()}
    others = {life.rank for life in lives if life.started <= until and life.gone >= world.joined} - ranks
    return max(0, world.size - len(ranks) - len(others))


def _carry_over(worlds: Sequence[World], lives: Sequence[Life]) -> None:
    """Adds surviving processes to a new process group if they did steps during this group's time, but logged no
    join."""
    going = [life for life in lives if life.worlds]
    for number, world in enumerate(worlds):
        if world.whole:
            continue
        going = [life for life in going if life.last_step_end >= world.joined]
        for life in going:
            until = first_from(life.joins, world.joined + 1)
            first, last = np.searchsorted(life.step_ends, [world.joined, until])
            missing = life.rank < world.size and life.rank not in world.members
            if missing and life.worlds[-1] < number and first < last:
                life.join(world.joined, world.size, number)
                world.members[life.rank] = life


def _shrunk(worlds: list[World], lives: Sequence[Life]) -> list[World]:
    """Adds the process groups that survivors of a loss form without logging a join. Returns all groups in order of
    time."""
    if any(life.told_joins for life in lives):
        return worlds
    for number in range(len(worlds)):
        members = worlds[number].members.values()
        at = min((life.gone for life in members), default=NEVER)
        staying = [life for life in members if life.gone > at]
        if not worlds[number].whole or not staying or not all(_steps_on(life, number, at) for life in staying):
            continue
        world = World(len(staying), {life.rank: life for life in staying}, at, min(life.gone for life in staying))
        worlds.append(world)
        for life in staying:
            life.join(at, world.size, len(worlds) - 1)
    order = sorted(range(len(worlds)), key=lambda number: worlds[number].joined)
    place_of = {number: place for place, number in enumerate(order)}
    for life in lives:
        life.worlds = [place_of[number] for number in life.worlds]
    return [worlds[number] for number in order]


def _steps_on(life: Life, number: int, at: int) -> bool:
    place = life.worlds.index(number) + 1
    until = life.joins[place] if place < len(life.joins) else NEVER
    first, last = np.searchsorted(life.step_ends, [at, until], "right")
    return bool(last - first > 1)


def gather(
    table: Columns, lives: Sequence[Life], worlds: Sequence[World], committed: Mapping[int, list[int]]
) -> tuple[dict[str, Column], list[Epoch], Progress, list[Stretch]]:
    """Returns four things: all steps as columns (sorted by end), the training periods, the complete steps, and the
    stretches. Columns of `table` are freed one by one, so that each step is in memory only once. `committed` maps each
    step to the times at which its checkpoint was committed."""
    rows = len(table["end"])
    process, label = np.full(rows, -1, np.int32), np.zeros(rows, np.int64)
    stretches: list[Stretch] = []
    for life in lives:
        mine = slice(life.writer.start, life.writer.start + len(life.step_ends))
        process[mine], label[mine] = life.index, _labels(life)
        if life.repeated is not None:
            process[mine][life.repeated] = -1
        stretches += _stretches(life, label[mine])
        life.writer.steps.clear()
    if (process < 0).any():  # copies: of whole files, or of lines
        kept = process >= 0
        table, process, label = table.rows(kept), process[kept], label[kept]
    changes = label[np.flatnonzero(np.diff(label)) + 1]  # labels come in long runs
    labels = np.unique(np.concatenate([label[:1], changes]))
    world_of = (labels >> _TURN_BITS).tolist()
    epoch: Column = np.searchsorted(labels, label).astype(np.int32)
    del label
    order = np.argsort(table["end"], kind="stable")
    columns: dict[str, Column] = {name: table[name] for name in COLUMNS if name not in table}
    columns |= {name: table.pop(name)[order] for name in [*table]}
    process, epoch = process[order], epoch[order]
    del order
    stretches = [replace(each, epoch=int(np.searchsorted(labels, each.epoch))) for each in stretches]
    size = np.array([worlds[world].size for world in world_of], np.int64)
    heard = size - np.array([worlds[world].unheard for world in world_of], np.int64)
    cut = [(each.epoch, each.last) for each in stretches if lives[each.process].cut]
    complete, progress = _complete(columns, epoch, size, heard, cut)
    of_epochs = [(world, worlds[world]) for world in world_of]
    epochs = _lineage(of_epochs, columns, epoch, committed, _final_restore(lives))
    until = np.array([e.kept for e in epochs], np.int64)
    survives = columns["step"] <= until[epoch] if len(epochs) else np.zeros(0, bool)
    rank = np.array([life.rank for life in lives], np.int64)[process]
    columns |= {"process": process, "rank": rank, "epoch": epoch, "complete": complete, "survives": survives}
    return columns, epochs, progress, stretches


def cells(*keys: Ints) -> tuple[Ints, int]:
    """Numbers the rows of the columns `keys`, so that equal rows get equal numbers. Returns the numbers of the rows,
    and an exclusive upper bound of these numbers."""
    number, span = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        low, high = (int(key.min()), int(key.max())) if len(key) else (0, 0)
        span *= high - low + 1
        if span > 8 * len(key) + 1000:
            values, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
            return number.reshape(-1), values.shape[1]
        number *= high - low + 1
        number += key - low
    return number, span


def _labels(life: Life) -> Ints:
    """Returns a label for each step: the index of its process group, combined with the number of rollbacks of this
    group so far."""
    step, end = life.writer.steps["step"], life.step_ends
    if not len(step):
        return np.zeros(0, np.int64)
    if len(life.worlds) == 1 and (np.diff(step) > 0).all():  # nearly always
        return np.full(len(step), life.worlds[0] << _TURN_BITS)
    position = np.searchsorted(np.array(life.joins), end, side="left") - 1
    world = np.array(life.worlds)[np.maximum(position, 0)]
    same = np.diff(world, prepend=-1) == 0
    fell = same & (np.diff(step, prepend=step[0]) <= 0)  # it went back without a start of new processes
    if life.repeated is not None:
        fell = fell & ~life.repeated
    turn = np.cumsum(fell)
    first = np.flatnonzero(np.diff(world, prepend=-1))
    turn -= np.repeat(turn[first], np.diff(first, append=len(step)))
    return np.asarray((world << _TURN_BITS) + turn, np.int64)


def _stretches(life: Life, label: Ints) -> Iterator[Stretch]:
    """Yields a `Stretch` for each training period of a process. The field `epoch` of a new `Stretch` is a label, which
    `gather` replaces by the index of the training period."""
    step, end = life.writer.steps["step"], life.step_ends
    if life.repeated is not None:
        step, end, label = step[~life.repeated], end[~life.repeated], label[~life.repeated]
    cuts = [0, *(np.flatnonzero(np.diff(label)) + 1).tolist(), len(step)]
    restored = {_next_row(step, end, event): event for event in life.restores}
    for lo, hi in itertools.pairwise(cuts) if len(step) else ():
        apart = np.diff(step[lo:hi])
        stride = int(apart.min()) if len(apart) else 0
        jumps = np.flatnonzero(apart > stride)[:_JUMPS_MAX] + lo
        yield Stretch(
            process=life.index,
            epoch=int(label[lo]),
            first=int(step[lo]),
            last=int(step[hi - 1]),
            rows=hi - lo,
            begin=int(end[lo]),
            end=int(end[hi - 1]),
            before=int(step[lo - 1]) if lo else None,
            restored=restored.get(lo),
            stride=stride,
            jumps=tuple((int(step[row]), int(step[row + 1])) for row in jumps.tolist()),
            later=tuple((event, int(step[row])) for row, event in restored.items() if lo < row < hi),
        )


def _next_row(step: Ints, end: Ints, restored: Mapping[str, Any]) -> int:
    """Returns the row of the first step after a restore. If rows have equal end times, the step number decides."""
    first, last = np.searchsorted(end, restored["at"]), np.searchsorted(end, restored["at"], "right")
    at_once = range(int(first), min(int(last) + 1, len(step), int(first) + _TIES_MAX))
    state = step_of(restored)
    if state is None:
        return int(first)
    following = state + 1
    return min(at_once, key=lambda row: (step[row] < following, abs(step[row] - following), row), default=len(step))


def _complete(
    columns: Mapping[str, Column], epoch: Ints, size: Ints, heard: Ints, cut: Sequence[tuple[int, int]]
) -> tuple[Bools, Progress]:
    """Marks the rows of complete steps, and returns the complete steps. `heard` is the number of ranks with a log in
    each training period. `cut` holds the training period and last step of each log that lacks its end."""
    if not len(epoch):
        return np.zeros(0, bool), no_progress()
    group, groups = cells(epoch, columns["step"])
    count = np.bincount(group, minlength=groups)
    begin, end = np.full(groups, NEVER), np.zeros(groups, np.int64)
    end[group] = columns["end"]  # rows are sorted by end: the last one to write wins
    np.minimum.at(begin, group, columns["begin"])
    of_group = np.zeros((2, groups), np.int64)
    of_group[0, group], of_group[1, group] = epoch, columns["step"]
    needed = heard[of_group[0]]
    for its_epoch, last in cut:
        needed[(of_group[0] == its_epoch) & (of_group[1] > last)] -= 1
    whole = (count > 0) & (count >= needed)
    chosen = np.flatnonzero(whole)
    chosen = chosen[np.argsort(end[chosen], kind="stable")]
    of_step, its_step = of_group[:, chosen]
    progress = Progress(its_step, begin[chosen], end[chosen], of_step, size[of_step])
    return whole[group], progress


def _final_restore(lives: Sequence[Life]) -> int | None:
    restores = [(event["at"], step_of(event)) for life in lives for event in life.restores]
    if not restores:
        return None
    at, step = max(restores, key=lambda each: (each[0], -1 if each[1] is None else each[1]))
    last_step = max((life.last_step_end for life in lives), default=0)
    return step if at > last_step else None


def _lineage(
    worlds: Sequence[tuple[int, World]],
    columns: Mapping[str, Column],
    epoch: Ints,
    committed: Mapping[int, list[int]],
    final_restore: int | None,
) -> list[Epoch]:
    """Returns all training periods. A period's `kept` follows from the checkpoint that a later period restored."""
    n = len(worlds)
    first, last = np.full(n, NEVER), np.full(n, -1)
    np.minimum.at(first, epoch, columns["step"])
    np.maximum.at(last, epoch, columns["step"])
    begin = np.full(n, NEVER)
    np.minimum.at(begin, epoch, columns["end"])
    kept = [-1] * n
    child, limit = n, NEVER if final_restore is None else final_restore
    while limit > 0:
        parent = _parent(child, limit, first, last, begin, committed)
        if parent is None:
            break
        kept[parent] = limit
        child, limit = parent, int(first[parent]) - 1
    return [
        Epoch(number, world.size, world.processes, int(first[i]), int(last[i]), int(begin[i]), kept[i], world.unheard)
        for i, (number, world) in enumerate(worlds)
    ]


def _parent(child: int, step: int, first: Ints, last: Ints, begin: Ints, saved: Mapping[int, list[int]]) -> int | None:
    """Returns the training period before `child` that wrote the checkpoint of `step`: the newest one that committed the
    checkpoint; without one, the newest that did the step; without one, the newest that began before the step."""
    earlier = range(child - 1, -1, -1)
    if step == NEVER:
        return next(iter(earlier), None)
    holders = [e for e in earlier if first[e] <= step <= last[e]]
    for e in holders:
        until = begin[e + 1] if e + 1 < len(begin) else NEVER
        if any(begin[e] <= at < until for at in saved.get(step, [])):
            return e
    return next(iter(holders), None) if holders else next((e for e in earlier if first[e] <= step), None)


def pairwise_epochs(progress: Progress) -> list[tuple[int, int]]:
    """Returns for each training period, in order of time, its first row in `progress`, and the row after its last."""
    if not len(progress):
        return []
    cuts = np.flatnonzero(np.diff(progress.epoch)) + 1
    return list(itertools.pairwise([0, *cuts.tolist(), len(progress)]))


def no_progress() -> Progress:
    empty = np.zeros(0, np.int64)
    return Progress(empty, empty, empty, empty, empty)
