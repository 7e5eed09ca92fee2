"""Keeps a list of the checkpoints that each node saved, with their steps, in a file that outlives the trainer's
processes.

The file `checkpoints.ledger` beside the node's event log holds JSON lines, each written by one `os.write` to an
`O_APPEND` descriptor. A process reads the lists of all nodes, because a checkpoint saved on one node may be loaded on
another. Malformed lines and irregular files are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Union

from harness.node.emitter import EVENTS_DIR_ENV

NAME = "checkpoints.ledger"
BYTES_MAX = 64 * 2**20  # of one node's ledger; what is beyond is not read
FOLDERS_MAX = 10_000


@dataclass(frozen=True)
class Saved:
    """A saved checkpoint file or folder with its training step (`None` if the step is unknown).

    `each_alone` is True if every call of an optimizer's `step` was counted as a training step.
    """

    path: str
    step: int | None
    lineage: str
    each_alone: bool = False


@dataclass(frozen=True)
class Committed:
    """A complete checkpoint. `files` are paths below `root`; `lineages` holds, for each file, a hash that identifies
    its contents."""

    path: str  # as told: a file or a folder
    root: str
    step: int | None
    content: str  # the digest of all files
    files: tuple[str, ...]
    lineages: tuple[str, ...]


@dataclass(frozen=True)
class Began:
    """A fingerprint of a rank's parameters before its first step, in a process that loaded no checkpoint."""

    rank: int
    state: str


Entry = Union[Saved, Committed, Began]
_KINDS: dict[str, type] = {"saved": Saved, "committed": Committed, "began": Began}


class Ledger:
    """Reads all nodes' lists of saved checkpoints, and extends the list of this process's node. `folder` is the node's
    folder of events (default: the folder that an environment variable names). Without a folder, nothing is added to the
    list."""

    def __init__(self, folder: pathlib.Path | None = None):
        self._folder = folder

    @property
    def folder(self) -> pathlib.Path | None:
        named = os.environ.get(EVENTS_DIR_ENV)
        return self._folder or (pathlib.Path(named) if named else None)

    def add(self, entry: Entry) -> None:
        """Appends an entry to the node's list of saved checkpoints. Raises `OSError` if the disk is full."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        kind = next(name for name, each in _KINDS.items() if isinstance(entry, each))
        line = json.dumps({"kind": kind, "at": time.time_ns(), **asdict(entry)}) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.folder / NAME, flags, 0o644), "wb", buffering=0) as file:
            file.write(line.encode())

    def entries(self) -> list[Entry]:
        """Returns the entries of all nodes' lists of saved checkpoints that can be read, the oldest first."""
        found = [pair for path in self._paths() for pair in _read(path)]
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]

    def _paths(self) -> list[pathlib.Path]:
        folder = self.folder
        if folder is None:
            return []
        mine = folder / NAME
        others: list[pathlib.Path] = []
        with contextlib.suppress(OSError), os.scandir(folder.parent) as folders:
            names = (each.name for each, _ in zip(folders, range(FOLDERS_MAX)) if each.is_dir(follow_symlinks=False))
            others = [folder.parent / name / NAME for name in names]
        return [mine, *(path for path in others if path != mine)]


def _read(path: pathlib.Path) -> Iterator[tuple[int, Entry]]:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            yield from entries_in(file.read(BYTES_MAX))


def entries_in(content: bytes) -> Iterator[tuple[int, Entry]]:
    for line in content.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            yield _entry(line)


def _entry(line: bytes) -> tuple[int, Entry]:
    told = json.loads(line)
    if not isinstance(told, dict):
        raise ValueError("no object")
    at = int(told.pop("at"))
    entry = _KINDS[told.pop("kind")](**told)
    for name in ("path", "root", "lineage", "content", "state"):
        if not isinstance(getattr(entry, name, ""), str):
            raise ValueError(name)
    step = getattr(entry, "step", None)
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise ValueError("step")
    if not isinstance(getattr(entry, "each_alone", False), bool):
        raise ValueError("each_alone")
    if isinstance(entry, Committed):
        entry = replace(entry, files=tuple(map(str, entry.files)), lineages=tuple(map(str, entry.lineages)))
    return at, entry
