"""Runs a job, and records the changes of its checkpoint folder and the saves that the job reported as finished."""

from __future__ import annotations

import bisect
import itertools
import pathlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.backends import run_folder
from harness.backends.contract import Launch, Verb
from harness.backends.local.backend import LocalBackend, LocalCluster
from harness.campaign import restarts
from harness.errors import CannotRunError, ChaosError
from harness.evidence.restarts import Losses, read_restart
from harness.explore.answers import Paths
from harness.explore.file_systems import NEVER, Data, Entry, Size, changes_of
from harness.explore.operations import Operation
from harness.explore.recording_file import read_operations
from harness.log import reading, untrusted_files
from harness.node.fuse.recording import DATA, DATA_BYTES_MAX, OPERATIONS_MAX
from harness.plan.run_plan import Plan
from harness.run.job import execute
from harness.run.observers import Heard, Status
from harness.run.stop import StopRequest
from harness.timeline.save_events import COMMITTED

SAVES = 3  # explored from the end of the first one to the end of the last one
SAVES_MAX = 8  # recorded, until one of them was removed; rotations keep five or fewer as a rule
SHARE = 0.5  # of the record's limits and of the job's time: after them, no save is awaited to be removed


@dataclass(frozen=True)
class Save:
    """A finished save of the recorded job. `end` is the number of the first file operation after the job reported this
    save as finished."""

    step: int
    end: int


@dataclass(frozen=True)
class Recorded:
    """The recording of a run: its losses, its file operations up to the last explored save, and the paths of its
    saves."""

    operations: Sequence[Operation]
    data: pathlib.Path
    saves: Sequence[Save]
    losses: Losses
    tellers: int  # number of ranks that told of their steps
    recorded: int = 0  # number of recorded saves, explored or not
    removed: bool = False  # whether an explored operation removed a save
    savers: int = 1  # number of processes that called saves finished
    paths: Paths = field(default_factory=dict)

    @property
    def save_s(self) -> float:
        ends = [self.operations[save.end - 1].t_ns for save in self.saves if save.end]
        return max((later - sooner for sooner, later in itertools.pairwise(ends)), default=0) / 1e9

    def due(self, during: int) -> int:
        """Returns the step of the last save that was finished before the operation with the number `during`, or 0."""
        return max((save.step for save in self.saves if save.end <= during), default=0)


class Recording(LocalBackend):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        capability = self.probe()
        if Verb.STORAGE not in capability.verbs:
            raise CannotRunError(f"no folder can be recorded here: {capability.missing.get(Verb.STORAGE, '')}")

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> LocalCluster:
        return super().open(replace(workload, mounts=(self._folder,), recorded=(self._folder,)), run_dir, run_id)


class _UntilRemoved(restarts.Until):
    def __init__(self, users: StopRequest, place: pathlib.Path, wall_clock_ns: int) -> None:
        super().__init__(users, self._enough)
        self._place, self._wall_clock_s = place, wall_clock_ns / 1e9
        self._ends: dict[int, int] = {}  # step of a save → operations recorded when it was heard of
        self._news = False
        self._since: int | None = None

    def new_events(self, events: Heard) -> None:
        new = {event["step"] for _, event in events if event["event"] == COMMITTED} - self._ends.keys()
        self._ends |= dict.fromkeys(new, 0)
        self._news |= bool(new)

    def _enough(self, status: Status) -> bool:
        if self._since is None and self._news:
            self._news = False
            if self._all_seen(status.elapsed_s):
                self._since = max(status.step, *self._ends)
        return self._since is not None and status.step >= self._since + restarts.FOLLOWED_STEPS

    def _all_seen(self, elapsed_s: float) -> bool:
        operations = read_operations(self._place)
        self._ends |= {step: len(operations) for step, end in self._ends.items() if not end}
        if len(self._ends) < SAVES:
            return False
        ends = sorted(self._ends.values())
        first = first_removal(operations, ends)
        full = len(operations) > SHARE * OPERATIONS_MAX or (self._place / DATA).stat().st_size > SHARE * DATA_BYTES_MAX
        late = len(ends) >= SAVES_MAX or elapsed_s > SHARE * self._wall_clock_s
        return full or late or (first is not None and first < ends[-2])


def first_removal(operations: Sequence[Operation], ends: Sequence[int]) -> int | None:
    """Returns the number of the operation that first removed a save, or `None`.

    `ends` holds, for each save in order, the number of the first operation after the save. A save counts as removed
    when its largest file is deleted (no hard link is left), truncated or overwritten.
    """
    names: dict[tuple[int, str], int] = {}
    links, sizes, written = Counter[int](), dict[int, int](), set[int]()
    watched: dict[int, int] = {}  # the largest file of each earlier save → its size then
    saves = iter([*ends, NEVER])
    end = next(saves)
    for change in changes_of("posix", operations, split=False):
        while change.operation >= end:
            own = [(sizes[inode], inode) for inode in written if links[inode] > 0 and sizes[inode]]
            watched |= {inode: size for size, inode in sorted(own)[-1:]}
            written.clear()
            end = next(saves)
        for part in change.parts:
            if isinstance(part, Entry):
                old = names.pop((part.folder, part.name), None)
                links.subtract([] if old is None else [old])
                if part.inode is not None:
                    names[part.folder, part.name] = part.inode
                    links[part.inode] += 1
                continue
            if part.inode in watched and _harms(part, watched[part.inode]):
                return change.operation
            written.add(part.inode)
            grown = max(sizes.get(part.inode, 0), part.offset + part.size) if isinstance(part, Data) else part.size
            sizes[part.inode] = grown
        if any(links[inode] <= 0 for inode in watched):
            return change.operation
    return None


def record(plan: Plan, folder: pathlib.Path, stop: StopRequest) -> Recorded:
    """Runs the job without faults until it has removed a save, or reaches a limit of saves, time or recorded data.
    Removes the job's saves at the end, so that a restart finds only the saves in its own folder. Raises `ChaosError` if
    the job fails or its recording is unusable, and `KeyboardInterrupt` if the user stopped the job."""
    place = folder / run_folder.RECORDS / plan.workload.checkpoint.folder
    until = _UntilRemoved(stop, place, plan.abort.wall_clock_ns)
    outcome = execute(plan, folder, Recording(plan.workload.checkpoint.folder), until, until.end)
    if stop.asked:
        raise KeyboardInterrupt
    if outcome.outcome not in ("completed", "interrupted"):
        raise ChaosError(f"the run without faults did not save: {outcome.reason}")
    untrusted_files.remove_tree(folder, plan.workload.checkpoint.folder)
    return load(plan, folder)


def load(plan: Plan, folder: pathlib.Path) -> Recorded:
    """Reads the recording in a run's folder. Raises `ChaosError` if the recording is incomplete or has fewer than two
    saves."""
    place = folder / run_folder.RECORDS / plan.workload.checkpoint.folder
    operations = read_operations(place)
    log = reading.read(folder / "events")
    told = _finished(log)
    losses = read_restart(folder).losses
    last = max((step for _, step in losses), default=0)
    times = [each.t_ns for each in operations]
    saves = [Save(step, bisect.bisect_right(times, at)) for step, at in sorted(told.items(), key=lambda item: item[1])]
    saves = [save for save in saves if save.step < last]  # a restart from the last step has none to do
    if len(saves) < 2:
        raise ChaosError(
            f"the run has {len(saves)} saves with a step after them that the trainer called finished "
            f"({COMMITTED}); a crash is explored between two: give the job more steps, or more frequent saves"
        )
    if not operations:
        raise ChaosError(
            f"the job changed nothing in {plan.workload.checkpoint.folder}/; say where it saves: "
            "workload: checkpoint: path"
        )
    tellers = len({rank for rank, _ in losses})
    first = first_removal(operations, [save.end for save in saves])
    removed = first is not None and first < saves[-1].end
    shown = _around(saves, first) if first is not None and removed else saves[:SAVES]
    explored = operations[: shown[-1].end]
    savers, paths = _savers_and_paths(log, f"{folder}/")
    return Recorded(explored, place / DATA, shown, losses, tellers, len(saves), removed, savers, paths)


def _finished(log: reading.Log) -> dict[int, int]:
    told: dict[int, dict[object, int]] = {}
    for writer in log.writers:
        for event in writer.events:
            if event["event"] == COMMITTED and "wall_ns" in event:
                ranks = told.setdefault(event["step"], {})
                rank = writer.header.get("rank")
                ranks[rank] = min(ranks.get(rank, event["wall_ns"]), event["wall_ns"])
    return {step: max(ranks.values()) for step, ranks in told.items()}


def _around(saves: Sequence[Save], operation: int) -> Sequence[Save]:
    before = max(number for number, save in enumerate(saves) if save.end <= operation)
    begin = max(min(before, len(saves) - SAVES), 0)
    return saves[begin : begin + SAVES]


def _harms(part: Size | Data, size: int) -> bool:
    return part.size < size if isinstance(part, Size) else part.offset < size


def _savers_and_paths(log: reading.Log, root: str) -> tuple[int, Paths]:
    savers, paths = 0, dict[int, list[str]]()
    for writer in log.writers:
        mine = [event for event in writer.events if event["event"] == COMMITTED]
        savers += bool(mine)
        for event in mine:
            paths.setdefault(event["step"], []).append(str(event.get("path") or "").removeprefix(root))
    return savers, paths
