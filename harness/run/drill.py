"""Makes the restore drill: a completed job's command starts again, and must restore one of the job's checkpoints.

A drill has its own nodes, and works on copies of the checkpoints in the folder `RUN/drill/`. The run's log holds only
two events of a drill, `drill.started` and `drill.finished`. If a drill cannot be made, the log says so, and the run's
result does not change.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from harness.backends import run_folder
from harness.backends.contract import Backend, Launch
from harness.errors import FaultError
from harness.log import untrusted_files
from harness.log.journal import Journal
from harness.node.emitter import EXIT_LEFT, Emitter
from harness.plan.run_plan import Abort, Plan
from harness.run.live_progress import LiveProgress
from harness.run.observers import Heard, Observer, Silent, Status
from harness.run.stop import StopRequest
from harness.run.undo import DRILL
from harness.trainers.shared.stores import DIRECTORY

FOLDER = "drill"
SECOND = "second-restart"
LEDGER = "checkpoints.ledger"  # of the observer: see `harness.node.observer.checkpoint_ledger`
LIMIT_S = 60.0  # and three times what the run's own start took
START_TIMES = 3
OTHERS_TELL_S = 2.0  # once a rank has gone on with its steps
LEFT_TO_DO = "the last save is of the last step: steps that are no multiple of its interval would leave some to do"
COPY_S_MAX = 600.0
FREE_BYTES_MIN = 200 * 2**20  # what is left on the disk beside the copy
REACHED = ("local", "docker", "slurm")  # where the harness sees the checkpoints in the run's folder


@dataclass(frozen=True)
class DrillOutcome:
    """The result of a restore drill. All ranks restored `restored_step`; `step` is the newest checkpoint's step."""

    outcome: str  # restored · scratch · failed · timeout · untold · error (the drill itself could not be made)
    step: int
    restored_step: int | None = None
    reason: str = ""


class CannotDrill(Exception):
    """Raised if a restore drill cannot show anything about the job's checkpoints."""


class Ended(Protocol):
    @property
    def outcome(self) -> str: ...

    @property
    def reason(self) -> str: ...


Execute = Callable[[Plan, pathlib.Path, Backend, Observer, StopRequest], Ended]


@dataclass
class Watch(Silent):
    """Follows a job that is restarted after the run. Ends the job when `enough` returns True or the user stops it."""

    users: StopRequest
    enough: Callable[["Watch"], bool]
    end: StopRequest = field(default_factory=StopRequest)
    progress: LiveProgress = field(default_factory=LiveProgress)
    ended_badly: bool = False  # a node's command

    def __post_init__(self) -> None:
        self.end.cap = self.users.cap  # its GPU time counts as well

    def new_events(self, events: Heard) -> None:
        for header, event in events:
            self.progress.absorb(header, event, time.monotonic_ns())
            if event["event"] == "process.exit" and header.get("role") == "harness":
                self.ended_badly |= event.get("code") not in (0, EXIT_LEFT)

    def status(self, status: Status) -> None:
        if self.users.asked:
            self.end.ask(self.users.reason)
        elif not self.end.asked and self.enough(self):
            self.end.ask("enough is known")

    def restored(self, newest: int) -> dict[int, int]:
        workers = self.progress.workers.items()
        told = {rank: worker.restored_step for rank, worker in workers}
        by_step = {rank: min(worker.first_step - 1, newest) for rank, worker in workers if worker.first_step > 1}
        return by_step | {rank: step for rank, step in told.items() if step is not None}

    @property
    def goes_on(self) -> bool:
        first_ns = self.progress.first_step_ns
        return bool(first_ns) and time.monotonic_ns() - first_ns > OTHERS_TELL_S * 1e9


@dataclass(frozen=True)
class Again:
    """Starts the job's command again after a run. `progress`, `begin_ns` and `observer` belong to the original run."""

    plan: Plan
    backend: Backend
    emit: Emitter
    journal: Journal
    stop: StopRequest
    execute: Execute
    progress: LiveProgress
    begin_ns: int
    observer: Observer

    @property
    def speakers(self) -> set[int]:
        planned = set(range(self.plan.workload.world_size))
        return planned & self.progress.workers.keys() or planned

    @property
    def start_limit_s(self) -> float:
        """Returns how many seconds a start may take, until the first step or until all ranks have restored a save."""
        return min(LIMIT_S + START_TIMES * self.start_s, self.plan.abort.wall_clock_ns / 1e9)

    @property
    def start_s(self) -> float:
        return max(self.progress.first_step_ns - self.begin_ns, 0) / 1e9

    def start(
        self,
        folder: str,
        limit_s: float,
        watch: Watch,
        prepare: Callable[[pathlib.Path], None] = lambda place: None,
        nodes: int | None = None,
    ) -> Ended:
        """Starts the job on `nodes` nodes (by default all) from a copy of its saves, which `prepare` may change before.
        Raises `CannotDrill` if the saves cannot be copied, or if the user wants to stop."""
        plan = self.plan.without_faults(f"{self.plan.run_id}-{folder}", nodes)
        limit_ns = min(int(limit_s * 1e9), plan.abort.wall_clock_ns)  # no longer than the run itself might have taken
        limits = Abort(if_no_step_for_ns=limit_ns, if_not_started_for_ns=limit_ns, wall_clock_ns=limit_ns)
        launch, place = plan.launch(), self.journal.run_dir / folder
        place.mkdir()
        self.journal.record(DRILL, {"names": saved_folders(launch), "folder": folder})
        copy_saved(launch, self.journal.run_dir, place)
        copy_ledgers(self.journal.run_dir, place)
        prepare(place)
        found_again = {"run_id": plan.run_id, "environment": self.backend.whereabouts()}
        self.journal.record(f"backends.{plan.backend}", found_again)
        ended = self.execute(plan.model_copy(update={"abort": limits}), place, self.backend, watch, watch.end)
        if self.stop.asked:
            raise CannotDrill(self.stop.reason)
        return ended

    def log(self, name: str, folder: str, make: Callable[[], Any], failed: Callable[[str], Any]) -> None:
        """Makes a restart after the run, and logs the restart's result and cost. Errors are logged, not raised."""
        begin_s = time.monotonic()
        self.emit(f"{name}.started", step=self.progress.committed_step)
        try:
            found = make()
        except Exception as error:
            found = failed(f"{type(error).__name__}: {error}")
        with contextlib.suppress(FaultError, OSError):  # copies that are left are told when the journal is closed
            _undo(self.journal.run_dir, saved_folders(self.plan.launch()), folder)
        seconds = time.monotonic() - begin_s
        cost = {"seconds": round(seconds, 3), "gpu_seconds": round(seconds * self.plan.workload.world_size, 3)}
        self.emit(f"{name}.finished", **asdict(found), **cost)


def is_wanted(plan: Plan, committed_step: int) -> bool:
    """Returns True if the run had faults and a checkpoint that the harness can see, and drills are not switched off.
    Returns False if a fault changes the job's command: the original command would load saves of the changed job."""
    same = not any(fault.action.change() for fault in plan.faults)
    reached = plan.backend in REACHED and plan.workload.checkpoint.store == DIRECTORY
    return plan.workload.restore_drill is not False and committed_step > 0 and bool(plan.faults) and reached and same


def why_not(plan: Plan) -> str:
    """Returns why a wanted restore drill is impossible, and what to change in the scenario. Returns an empty text if a
    drill is possible or not wanted."""
    if not plan.faults or plan.workload.restore_drill is False:
        return ""
    if not is_wanted(plan, committed_step=1):
        return f"No restore drill: the harness does not see checkpoints of backend {plan.backend} in this store"
    launch, folder = plan.launch(), plan.workload.checkpoint.folder
    words = (*launch.command, *launch.env.values(), *(launch.control or ()))
    if any(f"{{run_dir}}/{folder.partition('/')[0]}" in word for word in words):
        return ""
    needs = "A restore drill needs checkpoints in the run's folder, and the command names no place there"
    return f"{needs}: write {{checkpoints}} where it names its own folder for them"


def rehearse_restore(again: Again) -> None:
    step = again.progress.committed_step
    again.log("drill", FOLDER, lambda: _drill(again, step), lambda why: DrillOutcome("error", step, reason=why))


def _drill(again: Again, step: int) -> DrillOutcome:
    def enough(watch: Watch) -> bool:
        return again.speakers <= watch.restored(step).keys() or watch.goes_on

    watch = Watch(again.stop, enough)
    again.observer.starts_again("restore drill: the job must restore its last save", again.start_s + OTHERS_TELL_S)
    ended = again.start(FOLDER, again.start_limit_s, watch)
    found = DrillOutcome("timeout", step)
    steps = list(watch.restored(step).values())
    if steps and not watch.ended_badly:
        return _restored(found, steps)
    if watch.ended_badly or ended.outcome == "failed":
        return replace(found, outcome="failed", reason=ended.reason)
    if ended.outcome == "completed":
        reason = "the job's commands ended with 0, and nothing told what they had restored"
        reason += f"; {LEFT_TO_DO}" if step and step == again.progress.furthest_step else ""
        return replace(found, outcome="untold", reason=reason)
    if ended.outcome != "aborted":
        reason = "no rank told what it had restored, and each began with step 1" if watch.goes_on else ended.reason
        return replace(found, outcome="error", reason=reason)
    limit = f"{again.start_limit_s:.3g} s"
    return replace(found, reason=f"nothing was restored within {limit}: stuck in {watch.progress.phase}")


def _restored(found: DrillOutcome, told: list[int]) -> DrillOutcome:
    steps = sorted(set(told))
    if len(steps) > 1:
        return replace(found, outcome="failed", reason=f"the ranks restored different steps: {steps}")
    return replace(found, outcome="restored" if steps[0] else "scratch", restored_step=steps[0])


def _check_room(names: list[str], run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    needed, free = sum(_blocks(run_dir, name) for name in names), shutil.disk_usage(folder).free
    if needed + FREE_BYTES_MIN > free:
        mib = [number // 2**20 for number in (needed, free, FREE_BYTES_MIN)]
        raise CannotDrill(
            f"not enough room: a copy of the checkpoints takes {mib[0]} MiB, {mib[1]} MiB are free, of which "
            f"{mib[2]} MiB are to stay free"
        )


def _blocks(run_dir: pathlib.Path, name: str) -> int:
    sizes: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), untrusted_files.opened_folder(run_dir, name) as opened:
        for _, folders, files, here in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
            for each in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(each, dir_fd=here, follow_symlinks=False)
                    sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def copy_saved(workload: Launch, run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the job's saves with their owners and links, so that the nodes' user can use the copies."""
    names = saved_folders(workload)
    _check_room(names, run_dir, folder)
    for name in names:
        if untrusted_files.status_of(run_dir, name):
            _copy(run_dir / name, folder / name)


def copy_ledgers(run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the files in which an observer lists checkpoints, so that the observer recognises the copies."""
    for name in untrusted_files.files_below(run_dir, "events"):
        if name.count("/") == 2 and name.endswith(f"/{LEDGER}"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _copy(run_dir / name, folder / name)


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    words = ["cp", "-a", "--reflink=auto", "--", str(source), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COPY_S_MAX)
    if done.returncode:
        raise CannotDrill(f"{source.name} cannot be copied: {done.stderr.strip()[-200:]}")


def _undo(run_dir: pathlib.Path, names: list[str], folder: str = FOLDER) -> None:
    """Removes the copies that a restore drill made. Raises `FaultError` if a copy cannot be removed."""
    if folder not in (FOLDER, SECOND):
        raise FaultError(f"the undo journal is wrong: {folder!r} is not a folder of a drill")
    problems = []
    for name in names:
        try:
            untrusted_files.remove_tree(run_dir, f"{folder}/{name}")
        except FaultError as error:
            problems.append(str(error))
    if problems:
        raise FaultError("; ".join(problems))


UNDO = _undo


def saved_folders(workload: Launch) -> list[str]:
    """Returns the folders of a run that a restart needs: the training data, and all folders that nodes may write."""
    return sorted({*written_folders(workload), "data"})


def written_folders(workload: Launch) -> list[str]:
    nodes, control = (run_folder.folders_of(workload, node) for node in ("node0", run_folder.CONTROL))
    return sorted({*nodes, *control})
