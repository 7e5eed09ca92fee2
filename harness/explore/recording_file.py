"""Reads and checks the file operations that `harness.node.fuse.recording` recorded on a checkpoint folder."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import msgspec

from harness.errors import ChaosError
from harness.explore.file_systems import PROFILES
from harness.explore.operations import Kind, Operation
from harness.log import untrusted_files
from harness.node.fuse.recording import DATA, OPERATIONS, OPERATIONS_MAX

LINE_BYTES_MAX = 2**16
FOLDERS_MAX = 100  # one inside the other
NAME_BYTES_MAX = 255
_MAKES = (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK)
_NAMES_ANOTHER = (Kind.RENAME, Kind.LINK)


def read_operations(folder: pathlib.Path) -> list[Operation]:
    """Returns the recorded operations in their order. Raises `ChaosError` with the line number if the record is
    damaged, such as by an operation on a missing file, or a write whose data is missing."""
    path, found = folder / OPERATIONS, list[Operation]()
    tree, last = PROFILES["posix"](split=False), 0
    try:
        lines = [*_lines(folder)]  # first: a recording that goes on writes the data before the line
        with untrusted_files.open_reader(folder, DATA) as data:
            data_bytes = os.fstat(data.fileno()).st_size
        for number, line in lines:
            try:
                operation = _operation(line)
                last = _checked(operation, last, data_bytes)
                tree.take(operation)
            except KeyError as error:
                raise ChaosError(f"{path}:{number}: {operation.in_words()}: there is no such name by then") from error
            except (ValueError, RecursionError) as error:
                raise ChaosError(f"{path}:{number}: is no operation of a recording: {error}") from error
            found.append(operation)
    except OSError as error:
        raise ChaosError(f"{folder / (error.filename or OPERATIONS)}: cannot be read: {error.strerror}") from error
    return found


def _lines(folder: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    with untrusted_files.open_reader(folder, OPERATIONS) as file:
        number = 0
        while (line := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
            number += 1
            if number > OPERATIONS_MAX + 2:
                raise ChaosError(f"{folder / OPERATIONS}: more than {OPERATIONS_MAX:,} operations")
            if line.strip():
                yield number, line
        if len(line) == LINE_BYTES_MAX:
            raise ChaosError(f"{folder / OPERATIONS}:{number + 1}: longer than {LINE_BYTES_MAX} bytes")


def _operation(line: bytes) -> Operation:
    told: Any = json.loads(line)  # knows the lone surrogates of file names that are not UTF-8, as msgspec does not
    if isinstance(told, dict) and "ended" in told:
        raise ChaosError(f"the recording is not whole: {told['ended']}")
    return msgspec.convert(told, Operation)


def _checked(operation: Operation, last: int, data_bytes: int) -> int:
    for path in (operation.path, operation.other) if operation.kind in _NAMES_ANOTHER else (operation.path,):
        if not path and operation.kind in (Kind.FSYNC_DIR, Kind.SYNC):
            continue
        names = path.split("/")
        odd = any(name in ("", ".", "..") or "\0" in name or len(os.fsencode(name)) > NAME_BYTES_MAX for name in names)
        if odd or len(names) > FOLDERS_MAX:
            raise ValueError(f"path {path[:200]!r}; allowed: a relative one of at most {FOLDERS_MAX} names")
    if operation.kind is Kind.WRITE and operation.data + operation.size > data_bytes:
        raise ValueError(f"its data end at byte {operation.data + operation.size}; {DATA} has {data_bytes} bytes")
    made = operation.kind in _MAKES
    if operation.inode != last + 1 if made else operation.inode > last:
        raise ValueError(
            f"inode {operation.inode}; allowed: " + (f"{last + 1}, the next one" if made else f"0 to {last}")
        )
    return max(last, operation.inode)
