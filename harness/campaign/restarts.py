"""Restarts a job from its saved checkpoints. Each restart has its own folder, and runs only as long as it must."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from harness.backends.contract import Backend
from harness.evidence.restarts import Restart, read_restart
from harness.log import untrusted_files
from harness.log.journal import JOURNAL
from harness.plan.run_plan import Abort, Plan
from harness.run import drill
from harness.run.job import Outcome, execute
from harness.run.observers import Silent, Status
from harness.run.stop import StopRequest

FOLLOWED_STEPS = 5  # steps after a restore that are compared
LIMITS = Abort(if_no_step_for_ns=60 * 10**9, wall_clock_ns=180 * 10**9)  # of each restart


def restart(
    plan: Plan,
    folder: pathlib.Path,
    backend: Backend,
    stop: StopRequest,
    prepare: Callable[[pathlib.Path], None],
    until: Until | None = None,
    keep: bool = False,
) -> tuple[Restart, Outcome]:
    """Restarts the job in a new folder, to which `prepare` copies the saved checkpoints.

    `until` decides when to end the job (default: after `FOLLOWED_STEPS` steps). Unless `keep` is True, the saves are
    removed at the end. Errors that `prepare` raises are not caught.
    """
    folder.mkdir(parents=True)
    until = until or Until(stop, some_steps_after())
    try:
        prepare(folder)
        outcome = execute(plan, folder, backend, until, until.end)
    finally:
        if not keep:
            remove_saves(plan, folder)
    return read_restart(folder), outcome


def remove_saves(plan: Plan, folder: pathlib.Path) -> None:
    for saved in (*drill.saved_folders(plan.launch()), "kept"):
        untrusted_files.remove_tree(folder, saved)


def own_folder(folder: pathlib.Path) -> None:
    """Makes a folder for several restarts of a job. An empty file `undo.jsonl` marks the folder as the harness's own,
    so that nodes cannot write to it (only to their run's folder)."""
    folder.mkdir(parents=True)
    (folder / JOURNAL).touch(0o600)


class Until(Silent):
    def __init__(self, users: StopRequest, enough: Callable[[Status], bool]):
        self.end, self._users, self._enough = StopRequest(), users, enough

    def status(self, status: Status) -> None:
        if self._users.asked:
            self.end.ask(self._users.reason)
        elif not self.end.asked and self._enough(status):
            self.end.ask("enough is known")


def some_steps_after() -> Callable[[Status], bool]:
    first: int | None = None

    def enough(status: Status) -> bool:
        nonlocal first
        if status.phase == "training" and first is None:
            first = status.step
        return first is not None and status.step >= first + FOLLOWED_STEPS

    return enough
