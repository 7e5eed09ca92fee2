"""Keeps the undo journal of a run: each change to be undone later is recorded on the disk before the change is made.

The journal is the file `undo.jsonl` in the run's folder. Each line of the journal is a JSON object. A change is
recorded as `{"undo": ACTION, "arguments": {…}}`, and the end of a clean run as `{"closed": true}`. The harness may run
as root when it undoes changes, so it trusts a journal only if no other user can write to the file.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from harness.errors import FaultError

JOURNAL = "undo.jsonl"
SIZE_MAX = 16 * 2**20


class Journal:
    """The open undo journal of a run. The journal file is locked until the journal is closed or released."""

    def __init__(self, run_dir: pathlib.Path):
        self.run_dir = run_dir
        self._file = os.fdopen(os.open(run_dir / JOURNAL, _APPEND | os.O_CREAT, 0o600), "ab", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def record(self, action: str, arguments: dict[str, Any]) -> None:
        """Appends an undo record, and returns once the record is on the disk."""
        self._write({"undo": action, "arguments": arguments})

    def mark_closed(self) -> None:
        with self._file:
            self._write({"closed": True})

    def release(self) -> None:
        """Releases the lock, but does not mark the journal as closed, because changes remain to be undone."""
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        os.fsync(self._file.fileno())


_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def mark_closed(run_dir: pathlib.Path) -> None:
    """Marks the undo journal of a dead harness as closed. Writes a line break first, because the journal may end with
    an incomplete line."""
    descriptor = os.open(run_dir / JOURNAL, _APPEND)
    try:
        os.write(descriptor, b"\n" + json.dumps({"closed": True}).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_closed(run_dir: pathlib.Path) -> bool:
    """Returns True if a run's undo journal leaves nothing to undo. Raises `FaultError` if another user owns the
    journal, or can write to it."""
    found = list(records(run_dir))
    return not found or "closed" in found[-1]


def is_running(run_dir: pathlib.Path) -> bool:
    """Returns True if a living harness holds the journal's lock, or if the journal cannot be opened."""
    try:
        descriptor = os.open(run_dir / JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def records(run_dir: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a run's undo journal, oldest first. An incomplete line is skipped, because the harness
    makes a change only after its record is on the disk. Raises `FaultError` if another user owns the journal, or can
    write to it."""
    for line in _content(run_dir).split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _content(run_dir: pathlib.Path) -> bytes:
    path, here = run_dir / JOURNAL, run_dir
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            _refuse_foreign(os.fstat(folder), run_dir)
            here = path
            descriptor = os.open(JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            opened.callback(os.close, descriptor)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise FaultError(f"{here}: cannot be read: {error.strerror}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FaultError(f"{path}: not a regular file; a journal must be one")
        if status.st_size > SIZE_MAX:
            raise FaultError(f"{path}: {status.st_size} bytes; a journal may have at most {SIZE_MAX}")
        _refuse_foreign(status, path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(SIZE_MAX)


def _refuse_foreign(status: os.stat_result, path: pathlib.Path) -> None:
    if status.st_uid != os.geteuid():
        raise FaultError(f"{path}: it belongs to user {status.st_uid}, not to you ({os.geteuid()}); nothing was undone")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(status.st_mode)
        raise FaultError(f"{path}: others can write it ({mode}), so it is not trusted; nothing was undone")
