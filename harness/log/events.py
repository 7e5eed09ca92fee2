"""The event log as read back: whole files after a run, and lines as they are written during one."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.emitter import SCHEMA_VERSION
from harness.errors import EventLogError, FaultError
from harness.log import hostile

FILE_BYTES_MAX = 16 * 2**30
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class WriterLog:
    """One writer's file as read back. `torn` tells that its last line was cut by a kill."""

    path: pathlib.Path
    header: dict[str, Any]
    events: list[dict[str, Any]]
    torn: bool


def read_writer(path: pathlib.Path, decode: Callable[[bytes], Any] = json.loads) -> WriterLog | None:
    """Reads one file; `None` when not even its header was written.

    Raises `EventLogError` naming file and line for anything but one torn last line.
    """
    try:
        data = hostile.read(path.parent, path.name, FILE_BYTES_MAX)
    except OSError as error:
        raise EventLogError(f"{path}: cannot be read: {error.strerror}") from error
    except FaultError as error:
        raise EventLogError(str(error)) from error
    *lines, tail = data.split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = decode(line)
        except ValueError as error:
            raise EventLogError(f"{path}:{number}: not a whole JSON line ({error})") from error
        if not isinstance(record, dict):
            raise EventLogError(f"{path}:{number}: an event must be a JSON object, not {line[:40]!r}")
        records.append(record)
    if not records:
        return None
    header, *events = records
    if header.get("schema") != SCHEMA_VERSION:
        raise EventLogError(
            f"{path}:1: event schema {header.get('schema')!r}; this version reads schema {SCHEMA_VERSION}"
        )
    return WriterLog(path, header, events, torn=bool(tail))


def read_log(directory: pathlib.Path, decode: Callable[[bytes], Any] = json.loads) -> list[WriterLog]:
    """All writers of a run, in the order of their file names."""
    if not directory.is_dir():
        raise EventLogError(f"{directory}: no event log here")
    logs = (read_writer(path, decode) for path in writers_in(directory))
    return [log for log in logs if log is not None]


def writers_in(directory: pathlib.Path) -> list[pathlib.Path]:
    """The harness's own file, and those of each node in the node's folder."""
    return sorted([*directory.glob("*.jsonl"), *directory.glob("*/*.jsonl")])


class Tail:
    """Follows a growing event log: each `poll()` returns the whole lines written since, with their header."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self._offsets: dict[pathlib.Path, int] = {}
        self._headers: dict[pathlib.Path, dict[str, Any]] = {}

    def poll(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """New `(header, event)` pairs; order is kept within a writer."""
        found = []
        for path in writers_in(self.directory):
            offset = self._offsets.get(path, 0)
            try:
                with hostile.open_reader(path.parent, path.name) as file:
                    file.seek(offset)
                    chunk = file.read(CHUNK_BYTES)
            except (OSError, FaultError):
                continue
            end = chunk.rfind(b"\n") + 1
            self._offsets[path] = offset + end
            for line in chunk[:end].splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # judged by read_writer, which says where; following must not stop for it
                if path not in self._headers:
                    self._headers[path] = record
                else:
                    found.append((self._headers[path], record))
        return found
