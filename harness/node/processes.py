"""Finds processes in /proc, and signals or kills exactly the processes that were found.

A process is identified by its id and its start time, so that a new process with a reused id is never signalled.
"""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

RUN_ENV = "CHAOS_RUN_ID"
OWNER_ENV = "CHAOS_HARNESS"


@dataclass(frozen=True)
class ProcEntry:
    """A process as /proc shows it. `start` is in clock ticks since the machine booted."""

    pid: int
    start: int
    parent: int
    state: str
    cpu_ticks: int = field(default=0, compare=False)

    @property
    def running(self) -> bool:
        """Returns False for a process that has ended, also if its parent has not yet waited for it (a zombie)."""
        return self.state not in "ZX"

    def signal(self, signum: int) -> bool:
        """Sends the signal if this very process still exists. Returns True if the signal was sent."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            now = read(self.pid)
            if now is None or now.start != self.start:
                return False
            signal.pidfd_send_signal(descriptor, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)


def read(pid: int) -> ProcEntry | None:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name may hold spaces and parentheses: the fields start after the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcEntry(pid, int(fields[19]), int(fields[1]), fields[0].decode(), int(fields[11]) + int(fields[12]))


def every() -> list[ProcEntry]:
    found = (read(int(entry.name)) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def descendants(root: int) -> list[ProcEntry]:
    children: dict[int, list[ProcEntry]] = defaultdict(list)
    for process in every():
        children[process.parent].append(process)
    found, below = [], [root]
    while below:
        for process in children.pop(below.pop(), []):
            found.append(process)
            below.append(process.pid)
    return [process for process in found if process.running]


def environment(pid: int) -> dict[str, str]:
    """Returns the environment with which the process was started, or an empty dictionary if it cannot be read."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries if b"=" in entry)
    return {key: value for key, _, value in pairs}


def marked(**wanted: str) -> list[ProcEntry]:
    """Returns the running processes that were started with all of the variables `wanted`, except the caller."""
    own = os.getpid()
    return [
        process
        for process in every()
        if process.pid != own and process.running and wanted.items() <= environment(process.pid).items()
    ]


def kill_until_gone(find: Callable[[], list[ProcEntry]], limit_s: float) -> list[ProcEntry]:
    """Kills the processes that `find` returns until there are none. Returns the processes left after `limit_s`."""
    deadline = time.monotonic() + limit_s
    empty = 0
    # Searched twice: a process that executes another program just now shows no environment.
    while empty < 2 and time.monotonic() < deadline:
        left = find()
        empty = 0 if left else empty + 1
        for process in left:
            process.signal(signal.SIGKILL)
        time.sleep(0.002)
    return find()


def _pid_namespace() -> int:
    return pathlib.Path("/proc/self/ns/pid").stat().st_ino


def owner_text() -> str:
    """Returns a text that identifies this process: PID namespace, id and start time."""
    this = read(os.getpid())
    assert this is not None, "/proc has no entry for the calling process"
    return f"{_pid_namespace()}-{this.pid}-{this.start}"


def owner_is_dead(text: str) -> bool:
    """Returns True if the process that `text` (from `owner_text`) identifies is dead, and False if the process is alive
    or its state is unknown."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, start = map(int, parts)
    if namespace != _pid_namespace():
        return False
    process = read(pid)
    return process is None or process.start != start or not process.running
