"""Runs a job and records the changes of its checkpoint folder, and the saves that it reported as finished."""

from __future__ import annotations

import bisect
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import msgspec

from harness.backends import run_folder
from harness.backends.contract import Launch, Verb
from harness.backends.local.backend import LocalBackend, LocalCluster
from harness.campaign import restarts
from harness.errors import CannotRunError, ChaosError
from harness.evidence.restarts import Losses, read_restart
from harness.explore.operations import Kind, Operation
from harness.log import reading, untrusted_files
from harness.node.fuse.recording import DATA, OPERATIONS
from harness.plan.run_plan import Plan
from harness.run.job import execute
from harness.run.observers import Heard, Status
from harness.run.stop import StopRequest
from harness.timeline.save_events import COMMITTED

SAVES = 3  # explored from the end of the first one to the end of the last one
_FIELDS = {field.name for field in fields(Operation)}


@dataclass(frozen=True)
class Save:
    """A save of the recorded job that was finished. `end` is the number of the first operation after the job reported
    it as finished."""

    step: int
    end: int


@dataclass(frozen=True)
class Recorded:
    """A recorded job: its file operations up to the end of the last explored save, and its losses."""

    operations: Sequence[Operation]
    data: pathlib.Path
    saves: Sequence[Save]
    losses: Losses
    tellers: int  # number of ranks that told of their steps

    def due(self, during: int) -> int:
        """Returns the step of the last save that was finished when a crash during this operation came."""
        return max((save.step for save in self.saves if save.end <= during), default=0)


class Recording(LocalBackend):
    """The local backend, made to record the file operations of nodes on one folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        capability = self.probe()
        if Verb.STORAGE not in capability.verbs:
            raise CannotRunError(f"no folder can be recorded here: {capability.missing.get(Verb.STORAGE, '')}")

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> LocalCluster:
        return super().open(replace(workload, mounts=(self._folder,), recorded=(self._folder,)), run_dir, run_id)


class _UntilSaved(restarts.Until):
    """Ends the recorded job once this many saves are finished and some more steps are done."""

    def __init__(self, users: StopRequest) -> None:
        super().__init__(users, self._enough)
        self._saved: set[int] = set()
        self._since: int | None = None

    def new_events(self, events: Heard) -> None:
        self._saved |= {event["step"] for _, event in events if event["event"] == COMMITTED}

    def _enough(self, status: Status) -> bool:
        if self._since is None and len(self._saved) >= SAVES:
            self._since = max(status.step, *self._saved)
        return self._since is not None and status.step >= self._since + restarts.FOLLOWED_STEPS


def record(plan: Plan, folder: pathlib.Path, stop: StopRequest) -> Recorded:
    """Runs the job without faults until three saves are finished. Its saves are removed, so that a restart finds only
    those in its own folder. Raises `ChaosError` if there is nothing to explore."""
    until = _UntilSaved(stop)
    outcome = execute(plan, folder, Recording(plan.workload.checkpoint.folder), until, until.end)
    if outcome.outcome not in ("completed", "interrupted"):
        raise ChaosError(f"the run without faults did not save: {outcome.reason}")
    untrusted_files.remove_tree(folder, plan.workload.checkpoint.folder)
    return load(plan, folder)


def load(plan: Plan, folder: pathlib.Path) -> Recorded:
    """Reads the recording in a run's folder. Raises `ChaosError` if it is incomplete or has fewer than two saves."""
    place = folder / run_folder.RECORDS / plan.workload.checkpoint.folder
    operations = _operations(place / OPERATIONS)
    log = reading.read(folder / "events")
    told: dict[int, int] = {}
    for writer in log.writers:
        for event in writer.events:
            if event["event"] == COMMITTED and "wall_ns" in event:
                told[event["step"]] = max(told.get(event["step"], 0), event["wall_ns"])
    losses = read_restart(folder).losses
    last = max((step for _, step in losses), default=0)
    times = [each.t_ns for each in operations]
    saves = [Save(step, bisect.bisect_right(times, at)) for step, at in sorted(told.items(), key=lambda item: item[1])]
    saves = [save for save in saves if save.step < last][:SAVES]  # a restart from the last step has none to do
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
    return Recorded(operations[: saves[-1].end], place / DATA, saves, losses, tellers)


def _operations(path: pathlib.Path) -> list[Operation]:
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ChaosError(f"{path}: the recording cannot be read: {error.strerror}") from error
    found = []
    for number, line in ((number, line) for number, line in enumerate(lines, 1) if line):
        try:
            told = msgspec.json.decode(line, type=dict)
            if "ended" not in told:
                found.append(Operation(Kind(told.pop("kind")), **{key: told[key] for key in _FIELDS & told.keys()}))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ChaosError(f"{path}:{number}: no operation of a recording: {error}") from error
        if "ended" in told:
            raise ChaosError(f"the recording is not whole: {told['ended']}")
    return found
