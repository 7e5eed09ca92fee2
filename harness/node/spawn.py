"""Forks from a process that runs an event loop, starts commands, and waits for the end of child processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence

from harness.node import kernel

_RESET = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
DESCRIPTORS_MAX = 1 << 20  # the kernel's own default limit
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127


def fork(main: Callable[[], None], keep: Collection[int] = ()) -> int:
    """Runs the function `main` in a forked child, which keeps only the descriptors `keep` and 0–2."""
    pid, held = -1, signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
    finally:
        if pid:  # the child lets signals in once it has forgotten our handlers: they would swallow its first ones
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
    if pid:
        return pid
    status = 1
    try:
        _forget_parent(keep)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # the parent may be closed to others; its child is no part of it
        main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _forget_parent(keep: Collection[int]) -> None:
    # Inherited objects must never be finalized here: they would close descriptors by number.
    gc.disable()
    gc.freeze()
    signal.set_wakeup_fd(-1)
    # Python tells whose loop it is by the process id: but process 1 may have a child that is process 1 of a namespace.
    asyncio._set_running_loop(None)
    for signum in _RESET:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    last = 2
    for descriptor in sorted(keep):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, DESCRIPTORS_MAX)


def execute(command: Sequence[str], env: Mapping[str, str], log: str, prepare: Callable[[], None] | None = None) -> int:
    """Starts `command` in a session of its own, with its output appended to the file `log`. Returns the process id.

    The new process calls `prepare` before it executes the command. A command that cannot be executed exits with 127
    (not found) or 126, and the log holds the reason.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    output = os.open(log, flags, 0o644)
    os.set_blocking(output, True)
    try:
        return fork(lambda: _become(command, env, output, prepare), keep=(output,))
    finally:
        os.close(output)


def _become(command: Sequence[str], env: Mapping[str, str], output: int, prepare: Callable[[], None] | None) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if prepare is not None:
        prepare()
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be executed: {error.strerror}\n".encode())
        os._exit(EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE)


class Children:
    def __init__(self) -> None:
        self._exits: dict[int, Callable[[int], None]] = {}

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Registers a function that is called with the child's exit code once the child has ended. If a signal killed
        the child, the exit code is the negative signal number."""
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
