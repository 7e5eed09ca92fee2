"""Waits in a Slurm job until the harness is gone, then runs a command that ends the remaining processes.

    slurm_watch FILE SECONDS [COMMAND…]

The harness writes a new text to FILE every few seconds. The harness counts as dead when FILE was unchanged or
unreadable for SECONDS by this node's clock. This program dies with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from harness.node import kernel

LOOK_S = 1.0
_BYTES_MAX = 64


def main(file: str, seconds: float, command: Sequence[str]) -> None:
    parent = os.getppid()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    wait(lambda: content(file), seconds)
    print(f"the harness has been silent for {seconds:g} s: this job ends", file=sys.stderr, flush=True)
    if command:
        os.execvp(command[0], list(command))


def wait(look: Callable[[], bytes], seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    seen, since = b"", time.monotonic()
    while time.monotonic() - since < seconds:
        now = look()
        if now and now != seen:
            seen, since = now, time.monotonic()
        sleep(LOOK_S)


def content(file: str) -> bytes:
    """Returns a file's content, opened anew each time, because network file systems cache open files."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as opened:
            return opened.read(_BYTES_MAX) or b""
    except OSError:
        return b""


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
