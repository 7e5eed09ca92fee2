"""The restore drill: after a completed job its command starts once more, on a copy of what it saved, and must restore.

It has nodes of its own and a folder of its own, `RUN/drill/`; what is scored holds only `drill.started` and
`drill.finished`. A drill that cannot be made says so there, and changes nothing about the run's result.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from harness.backends.contract import Backend, Cluster
from harness.emitter import Emitter
from harness.log.events import Tail
from harness.log.journal import Journal
from harness.plan.model import Plan
from harness.run.last_words import last_words
from harness.run.stop import StopRequest
from harness.run.trigger import Progress
from harness.spec import secrets as redaction

FOLDER = "drill"
LIMIT_S = 60.0
TICK_S = 0.01
REACHED = ("local", "docker", "slurm")  # where the harness sees the checkpoints in the run's folder
_NOT_SAVED = {FOLDER, "events", "logs", "holds"}  # folders of a run that hold nothing a restart may need


@dataclass(frozen=True)
class Drill:
    """How it went. `step`: the newest committed checkpoint of the run; `restored_step`: what all ranks restored."""

    outcome: str  # restored · failed · timeout · not_run
    step: int
    restored_step: int | None = None
    reason: str = ""


class CannotDrill(Exception):
    """Nothing follows for the job's checkpoints."""


def is_wanted(plan: Plan) -> bool:
    """By default for the reference trainer; for others where the scenario asks for it. Never without faults."""
    asked = plan.workload.restore_drill
    wanted = plan.workload.trainer.drills if asked is None else asked
    return wanted and bool(plan.faults) and plan.backend in REACHED


def rehearse_restore(
    plan: Plan, backend: Backend, emit: Emitter, journal: Journal, committed_step: int, stop: StopRequest
) -> None:
    """Runs the drill and logs how it went. Whatever goes wrong is logged, too."""
    emit("drill.started", step=committed_step)
    folder = journal.run_dir / FOLDER
    try:
        found = _drill(_plan(plan), folder, backend, journal, committed_step, stop)
    except Exception as error:  # the run is over and complete: its result must not depend on the drill's own troubles
        found = Drill("not_run", committed_step, reason=f"{type(error).__name__}: {error}")
    for copied in _saved(folder):
        shutil.rmtree(copied, ignore_errors=True)
    emit("drill.finished", **asdict(found))


def _plan(plan: Plan) -> Plan:
    return plan.without_faults(f"{plan.run_id}-drill")


def _drill(
    plan: Plan, folder: pathlib.Path, backend: Backend, journal: Journal, committed_step: int, stop: StopRequest
) -> Drill:
    if not committed_step:
        raise CannotDrill("the job told of no checkpoint")
    workload = plan.launch()
    for name in ("events", "logs"):
        (folder / name).mkdir(parents=True)
    _copy(journal.run_dir, folder)
    journal.record(f"backends.{plan.backend}", {"run_id": plan.run_id, "environment": backend.whereabouts()})
    workload = replace(workload, env=redaction.resolve(workload.env))
    deadline = time.monotonic() + LIMIT_S
    with backend.open(workload, folder, plan.run_id) as cluster:
        cluster.start()
        return _watch(cluster, folder, Drill("timeout", committed_step), deadline, stop)


def _watch(cluster: Cluster, folder: pathlib.Path, found: Drill, deadline: float, stop: StopRequest) -> Drill:
    """Until all ranks of a world have restored, or a command has ended, or the time is over."""
    tail, progress = Tail(folder / "events"), Progress()
    while time.monotonic() < deadline:
        exits = [end for end in cluster.exits() if end.node != "control"]
        for header, event in tail.poll():
            progress.absorb(header, event, time.monotonic_ns())
        restored = progress.restored_steps()
        if restored:
            return _restored(found, restored)
        if exits:
            log = folder / "logs" / f"{exits[0].node}.{exits[0].incarnation}.log"
            reason = f"the command on {exits[0].node} ended with {exits[0].code}: {last_words(log)}"
            return replace(found, outcome="failed", reason=reason)
        if stop.asked:
            raise CannotDrill(stop.reason)
        time.sleep(TICK_S)
    return replace(found, reason=f"nothing was restored within {LIMIT_S:g} s: stuck in {progress.phase}")


def _restored(found: Drill, steps: list[int]) -> Drill:
    if len(set(steps)) > 1:
        return replace(found, outcome="failed", reason=f"the ranks restored different steps: {sorted(set(steps))}")
    if steps[0] == 0:
        return replace(found, outcome="failed", restored_step=0, reason="it started from scratch")
    return replace(found, outcome="restored", restored_step=steps[0])


def _copy(run_dir: pathlib.Path, folder: pathlib.Path) -> None:
    """What the job has saved, with owners and links as they are: the nodes' user must be able to go on with it."""
    for path in _saved(run_dir):
        words = ["cp", "-a", "--reflink=auto", "--", str(path), str(folder / path.name)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            raise CannotDrill(f"{path.name} cannot be copied: {done.stderr.strip()[-200:]}")


def _saved(run_dir: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in sorted(run_dir.glob("*")):
        if path.is_dir() and not path.is_symlink() and path.name not in _NOT_SAVED:
            yield path
