"""The restore drill: after a completed job its command starts once more, on a copy of what it saved, and must restore.

It has nodes of its own and a folder of its own, `RUN/drill/`; what is scored holds only `drill.started` and
`drill.finished`. A drill that cannot be made says so there, and changes nothing about the run's result.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, replace

from harness.backends import run_folder
from harness.backends.contract import Backend, Cluster, Exit, Workload
from harness.emitter import Emitter
from harness.errors import FaultError
from harness.log import hostile
from harness.log.events import Tail
from harness.log.journal import Journal
from harness.plan.model import Plan
from harness.run.last_words import first_error
from harness.run.stop import StopRequest
from harness.run.trigger import LiveProgress
from harness.run.undo import DRILL
from harness.spec import secrets as redaction

FOLDER = "drill"
LIMIT_S = 60.0
TICK_S = 0.01
OTHERS_END_S = 2.0
FREE_BYTES_MIN = 200 * 2**20  # what is left on the disk beside the copy
REACHED = ("local", "docker", "slurm")  # where the harness sees the checkpoints in the run's folder


@dataclass(frozen=True)
class DrillOutcome:
    """How it went. `step`: the newest committed checkpoint of the run; `restored_step`: what all ranks restored."""

    outcome: str  # restored · scratch · failed · timeout · error (the drill itself could not be made)
    step: int
    restored_step: int | None = None
    reason: str = ""


class CannotDrill(Exception):
    """Nothing follows for the job's checkpoints."""


def is_wanted(plan: Plan, committed_step: int) -> bool:
    """By default for the reference trainer; for others where the scenario asks for it. Never without faults, and never
    where the job told of no checkpoint."""
    asked = plan.workload.restore_drill
    wanted = plan.workload.trainer.drills if asked is None else asked
    reached = plan.backend in REACHED and plan.workload.checkpoint.store != "s3"  # a store that ends with the job
    return wanted and committed_step > 0 and bool(plan.faults) and reached


def rehearse_restore(
    plan: Plan, backend: Backend, emit: Emitter, journal: Journal, committed_step: int, stop: StopRequest
) -> None:
    """Runs the drill and logs how it went. Whatever goes wrong is logged, too."""
    emit("drill.started", step=committed_step)
    folder = journal.run_dir / FOLDER
    try:
        found = _drill(plan.without_faults(f"{plan.run_id}-drill"), folder, backend, journal, committed_step, stop)
    except Exception as error:  # the run is over and complete: its result must not depend on the drill's own troubles
        found = DrillOutcome("error", committed_step, reason=f"{type(error).__name__}: {error}")
    with contextlib.suppress(FaultError, OSError):  # what is left is told when the journal is closed
        _undo(journal.run_dir, saved_folders(plan.launch()))
    emit("drill.finished", **asdict(found))


def _drill(
    plan: Plan, folder: pathlib.Path, backend: Backend, journal: Journal, committed_step: int, stop: StopRequest
) -> DrillOutcome:
    workload = plan.launch()
    for name in ("events", "logs"):
        (folder / name).mkdir(parents=True)
    journal.record(DRILL, {"names": saved_folders(workload)})
    copy_saved(workload, journal.run_dir, folder)
    journal.record(f"backends.{plan.backend}", {"run_id": plan.run_id, "environment": backend.whereabouts()})
    workload = replace(workload, env=redaction.resolve(workload.env))
    deadline = time.monotonic() + LIMIT_S
    with backend.open(workload, folder, plan.run_id) as cluster:
        cluster.start()
        ranks = plan.workload.world_size
        return _watch(cluster, folder, ranks, DrillOutcome("timeout", committed_step), deadline, stop)


def _watch(
    cluster: Cluster, folder: pathlib.Path, ranks: int, found: DrillOutcome, deadline: float, stop: StopRequest
) -> DrillOutcome:
    """Until all ranks of a world have restored, or the commands have ended, or the time is over."""
    tail, progress, ends = Tail(folder / "events"), LiveProgress(), list[Exit]()
    while time.monotonic() < deadline:
        ended = len(ends) >= len(cluster.nodes)
        for header, event in tail.poll():
            progress.absorb(header, event, time.monotonic_ns())
        if restored := progress.restored_steps(ranks):
            return _restored(found, restored)
        if ended:
            return replace(found, outcome="failed", reason=_how_it_ended(ends, folder))
        if stop.asked:
            raise CannotDrill(stop.reason)
        ends += [end for end in cluster.exits() if end.node != "control"]
        if any(end.code for end in ends):  # the others need not end over it, and may still tell what they restored
            deadline = min(deadline, time.monotonic() + OTHERS_END_S)
        time.sleep(TICK_S)
    if ends:
        return replace(found, outcome="failed", reason=_how_it_ended(ends, folder))
    return replace(found, reason=f"nothing was restored within {LIMIT_S:g} s: stuck in {progress.phase}")


def _how_it_ended(ends: list[Exit], folder: pathlib.Path) -> str:
    first = next((end for end in ends if end.code), ends[0])
    log = folder / "logs" / f"{first.node}.{first.incarnation}.log"
    return f"the command on {first.node} ended with {first.code}: {first_error([log])}"


def _restored(found: DrillOutcome, steps: list[int]) -> DrillOutcome:
    if len(set(steps)) > 1:
        return replace(found, outcome="failed", reason=f"the ranks restored different steps: {sorted(set(steps))}")
    outcome = "restored" if steps[0] else "scratch"
    return replace(found, outcome=outcome, restored_step=steps[0])


def _check_room(names: list[str], run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """Raises `CannotDrill` where the copy would fill the disk. A file system that shares blocks would need less."""
    needed, free = sum(_blocks(run_dir, name) for name in names), shutil.disk_usage(folder).free
    if needed + FREE_BYTES_MIN > free:
        mib = [number // 2**20 for number in (needed, free, FREE_BYTES_MIN)]
        raise CannotDrill(
            f"not enough room: a copy of the checkpoints takes {mib[0]} MiB, {mib[1]} MiB are free, of which "
            f"{mib[2]} MiB are to stay free"
        )


def _blocks(run_dir: pathlib.Path, name: str) -> int:
    """The bytes on the disk of all files in the folder, each one once."""
    sizes: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), hostile.opened_folder(run_dir, name) as opened:
        for _, folders, files, here in os.fwalk(".", dir_fd=opened, follow_symlinks=False):
            for each in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(each, dir_fd=here, follow_symlinks=False)
                    sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def copy_saved(workload: Workload, run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """What the job has saved, with owners and links as they are: the nodes' user must be able to go on with it."""
    names = saved_folders(workload)
    _check_room(names, run_dir, folder)
    for name in names:
        if not hostile.status_of(run_dir, name):
            continue
        words = ["cp", "-a", "--reflink=auto", "--", str(run_dir / name), str(folder / name)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            raise CannotDrill(f"{name} cannot be copied: {done.stderr.strip()[-200:]}")


def _undo(run_dir: pathlib.Path, names: list[str]) -> None:
    """Removes the copies. Raises `FaultError` for the first one that stays, having tried all."""
    problems = []
    for name in names:
        try:
            hostile.remove_tree(run_dir, f"{FOLDER}/{name}")
        except FaultError as error:
            problems.append(str(error))
    if problems:
        raise FaultError("; ".join(problems))


UNDO = _undo


def saved_folders(workload: Workload) -> list[str]:
    """The folders that nodes may write, and the training data."""
    nodes, control = (run_folder.folders_of(workload, node) for node in ("node0", run_folder.CONTROL))
    return sorted({*nodes, *control, "data"})
