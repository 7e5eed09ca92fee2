"""Sends new data in log files to the harness as soon as it is written, so that the logs of a pod outlive the pod.

The kernel reports every write by inotify, so that even the last lines of a killed process are sent.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

CHUNK_BYTES = 128 * 2**10
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100  # inotify(7)

Tell = Callable[[dict[str, Any]], None]


class Follower:
    """Passes new data in files to `tell()` as `{"event": "wrote", "name", "offset", "data"}` with `data` in Latin-1. Of
    event logs, only whole lines are sent, because the writer may remove a half-written line."""

    def __init__(self, root: pathlib.Path, folders: Sequence[str], tell: Tell):
        self._root, self._folders, self._tell = root, folders, tell
        self._offsets: dict[str, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
            path = os.fsencode(root / folder)
            if self._libc.inotify_add_watch(self.descriptor, path, _MODIFY | _MOVED_TO | _CREATE) < 0:
                raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")

    def absorb(self) -> None:
        """Reports all new data in all files. Call `absorb` when `descriptor` is readable."""
        try:
            while os.read(self.descriptor, 64 * 2**10):
                continue
        except BlockingIOError:
            self.flush()

    def flush(self) -> None:
        for folder in self._folders:
            for entry in os.scandir(self._root / folder):
                if entry.is_file(follow_symlinks=False):
                    self._send(f"{folder}/{entry.name}", entry.path)

    def close(self) -> None:
        os.close(self.descriptor)

    def _send(self, name: str, path: str) -> None:
        offset = self._offsets.get(name, 0)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if name not in self._offsets:  # it may be empty, and mean something by being there
                self._tell({"event": "wrote", "name": name, "offset": 0, "data": ""})
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                if name.endswith(".jsonl"):
                    chunk = chunk[: chunk.rfind(b"\n") + 1]
                    file.seek(offset + len(chunk))
                if not chunk:
                    break
                self._tell({"event": "wrote", "name": name, "offset": offset, "data": chunk.decode("latin-1")})
                offset += len(chunk)
        self._offsets[name] = offset
