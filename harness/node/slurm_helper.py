"""Acts on the processes of a job's task on a Slurm node; runs beside the task, in the job's own allocation.

    python -m harness.node.slurm_helper NAME RUN_ID

The helper finds the run's processes by their environment variables (CHAOS_…), because it is not process 1 of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from harness.node import processes, server, slurm_storage
from harness.node.fuse import fuse_verbs
from harness.node.lab import Lab
from harness.node.limits import Limits
from harness.node.node_init import Init


async def until_told(serving: Coroutine[Any, Any, None]) -> None:
    """Runs `serving` to its end, or until Slurm ends the job by a signal (SIGTERM, SIGINT or SIGHUP)."""
    task = asyncio.ensure_future(serving)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


class JobLimits(Limits):
    def __init__(self, lab: Lab, name: str, run_id: str):
        super().__init__(lab, f"{name}.1", os.getpid(), lambda: [name])
        self._marks = {"CHAOS_RUN_ID": run_id, "CHAOS_NODE": name}

    def members(self) -> list[processes.ProcEntry]:
        running = [each for each in processes.every() if each.running]
        found = {each.pid for each in running if self._marks.items() <= processes.environment(each.pid).items()}
        while more := {each.pid for each in running if each.parent in found} - found:
            found |= more
        return [each for each in running if each.pid in found - {*self._burners, *self._fillers}]


class Agent(Init):
    def __init__(self, name: str, run_id: str):
        super().__init__(name, [name])
        self._limits = JobLimits(self._lab, name, run_id)

    async def serve(self) -> None:
        try:
            await until_told(server.serve(self.calls(), self._lab.reap, {"host": socket.gethostname()}))
        finally:
            self._duty.set_share(1.0)  # no process may stay stopped in the middle of a turn

    def calls(self) -> dict[str, Callable[..., Any]]:
        return super().calls() | {
            "storage.add": functools.partial(self._hand_on_rule, "add"),
            "storage.remove": functools.partial(fuse_verbs.hand_on, "remove", self._lab),
            "storage.counts": functools.partial(fuse_verbs.hand_on, "counts", self._lab),
            "storage.try_out": functools.partial(self._hand_on_rule, "try_out"),
        }

    async def _hand_on_rule(self, call: str, folder: str, node: str, rule: dict[str, Any]) -> Any:
        if folder not in self._lab.storage:
            self._lab.storage[folder] = await slurm_storage.connect(node, folder)
        return await fuse_verbs.hand_on(call, self._lab, folder, rule=rule, pid=None)

    def _signal_all(self, signum: int) -> int:
        told: set[int] = set()
        while new := [each for each in self._others() if each.pid not in told]:
            told |= {each.pid for each in new if each.signal(signum)}
            if len(told) < len(new):
                break  # some ended just now
        return len(told)


if __name__ == "__main__":
    asyncio.run(Agent(sys.argv[1], sys.argv[2]).serve())
