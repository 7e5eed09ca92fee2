"""Starts, kills and restarts the control command of a job on virtual nodes; the control command is usually the
rendezvous store."""

from __future__ import annotations

import asyncio
import os
import signal

from harness.errors import BackendError, NodeGone
from harness.node import spawn
from harness.node.compat import TIMEOUTS
from harness.node.lab import Call, Lab

KILL_S_MAX = 10.0


async def start(lab: Lab, command: list[str], env: dict[str, str], log: str, incarnation: int = 1) -> None:
    ended = asyncio.Event()
    pid = spawn.execute(command, env, log)
    lab.control = (pid, ended)

    def note_exit(code: int) -> None:
        ended.set()
        lab.tell("exit", node="control", incarnation=incarnation, code=code)

    lab.on_exit(pid, note_exit)


async def kill(lab: Lab) -> None:
    pid, ended = lab.control or (0, None)
    if ended is None or ended.is_set():
        raise NodeGone("no control command is running")
    os.killpg(pid, signal.SIGKILL)  # it leads a session of its own
    try:
        await asyncio.wait_for(ended.wait(), KILL_S_MAX)
    except TIMEOUTS as error:
        raise BackendError(f"the control command is still there {KILL_S_MAX:g} s after SIGKILL") from error


async def running(lab: Lab) -> bool:
    return lab.control is not None and not lab.control[1].is_set()


CALLS: dict[str, Call] = {"control.start": start, "control.kill": kill, "control.running": running}
