"""Finds and kills processes of virtual nodes that are left after their run has ended.

Virtual nodes with namespaces leave no processes, because the kernel ends them. Virtual nodes without namespaces leave
processes if the harness and its clean-up processes are killed at the same time. Only processes with the harness's
marker in their environment are killed.
"""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass

from harness.errors import BackendError
from harness.node import processes
from harness.node.processes import OWNER_ENV, RUN_ENV, ProcEntry


@dataclass(frozen=True)
class Leftover:
    process: ProcEntry
    run_id: str
    node: str
    command: str

    @property
    def words(self) -> str:
        return f"process {self.process.pid} of run {self.run_id} on node {self.node}: {self.command}"


def _command(pid: int) -> str:
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return words.replace(b"\0", b" ").decode(errors="replace").strip()


def leftovers(run_id: str | None = None) -> list[Leftover]:
    """Returns the processes left behind by the run `run_id` or, without `run_id`, by all dead harness processes."""
    found = []
    for process in processes.every():
        marks = processes.environment(process.pid) if process.running else {}
        if RUN_ENV not in marks or OWNER_ENV not in marks or process.pid == os.getpid():
            continue
        if marks[RUN_ENV] == run_id or (run_id is None and processes.owner_is_dead(marks[OWNER_ENV])):
            node = f"{marks.get('CHAOS_NODE', '?')}.{marks.get('CHAOS_INCARNATION', '?')}"
            found.append(Leftover(process, marks[RUN_ENV], node, _command(process.pid)))
    return found


def sweep(run_id: str | None = None, limit_s: float = 5.0, exempt: tuple[int, ...] = ()) -> int:
    """Kills the processes that `leftovers` finds, except those in `exempt`, and returns their number. Raises
    `BackendError` if some processes are left after `limit_s`."""

    def find() -> list[ProcEntry]:
        return [item.process for item in leftovers(run_id) if item.process.pid not in exempt]

    count = len(find())
    left = processes.kill_until_gone(find, limit_s)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise BackendError(f"processes {pids} are still there {limit_s:g} s after SIGKILL")
    return count
