"""The children of a process of ours: who hears of their end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable


class Children:
    def __init__(self) -> None:
        self._exits: dict[int, Callable[[int], None]] = {}

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Calls back with the exit code (negative: a signal) when the child has been reaped."""
        self._exits[pid] = callback

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # no child at all
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                callback = self._exits.pop(pid, None)
                if callback is not None:
                    callback(os.waitstatus_to_exitcode(status))
