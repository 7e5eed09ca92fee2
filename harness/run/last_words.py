"""The line of a node's log that looks like the reason why its command ended."""

from __future__ import annotations

import os
import pathlib
import stat

TAIL_BYTES = 64 * 2**10
LENGTH_MAX = 300


def last_words(log: pathlib.Path) -> str:
    """At most 300 characters of the end of the log. Never raises, never blocks: the node's user may own that file."""
    try:
        lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    except FileNotFoundError:
        return "it left no log"
    except OSError as error:
        return f"its log cannot be read: {error.strerror or error}"
    errors = [line for line in lines if "Error" in line or "error:" in line]
    return (errors or lines or ["its log is empty"])[-1][:LENGTH_MAX]


def _tail(log: pathlib.Path) -> str:
    descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no regular file")
        file.seek(max(0, found.st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
