"""The zip archives of `torch.save`: one in a file of its own, or many, one behind the other, in a shard of DCP.

Read from the end: each archive says how long it is, so what lies before it ends where it begins. Format: PKWARE's
APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory) and 4.3.14 to 4.3.16 (its ends).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

END, END64, LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
DIRECTORY_BYTES_MAX = 16 * 2**20  # 100,000 files
ARCHIVES_MAX = 100_000
SEARCH_BYTES = 2**20
SEARCHED_MAX = 2**30  # bytes looked at for the ends of archives, in one file: a hole of terabytes has none
ENDS_MAX = 10_000  # of archives that turn out to be none, in one file
_FULL = 0xFFFFFFFF


@dataclass(frozen=True)
class Member:
    """One stored file of an archive: its name and where its content lies, from `start` up to `end`."""

    name: str
    start: int
    end: int


def entries(file: IO[bytes]) -> Iterator[Member]:
    """Of all archives in the file, the last one first. What is no archive is passed over."""
    end, budget = file.seek(0, os.SEEK_END), _Budget()
    for _ in range(ARCHIVES_MAX):
        found = _last_archive(file, end, budget)
        if found is None:
            return
        begin, content = found
        yield from content
        end = begin


def is_complete(file: IO[bytes]) -> bool:
    """Whether the file ends with an archive that reads to its begin."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 22))
    return file.read(4) == END and _last_archive(file, end, _Budget()) is not None


@dataclass
class _Budget:
    """What may still be done to find archives in one file."""

    searched: int = SEARCHED_MAX
    ends: int = ENDS_MAX


def _last_archive(file: IO[bytes], end: int, budget: _Budget) -> tuple[int, list[Member]] | None:
    """Where the last whole archive before `end` begins, and what is in it."""
    while budget.ends and (at := _find_last(file, END, end, budget)) is not None:
        try:
            return _archive(file, at, budget)
        except (ValueError, struct.error):
            end = at
            budget.ends -= 1
    return None


def _find_last(file: IO[bytes], wanted: bytes, end: int, budget: _Budget) -> int | None:
    """The last place before `end` with these bytes, which lie before it whole."""
    look = 4096  # an end is mostly close
    while end >= len(wanted) and budget.searched > 0:
        begin, look = max(0, end - look), min(2 * look, SEARCH_BYTES)
        file.seek(begin)
        budget.searched -= end - begin
        found = file.read(end - begin).rfind(wanted)
        if found >= 0:
            return begin + found
        if begin == 0:
            return None
        end = begin + len(wanted) - 1
    return None


def _archive(file: IO[bytes], end: int, budget: _Budget) -> tuple[int, list[Member]]:
    """Raises `ValueError` or `struct.error` for what is none."""
    size, offset, ends_at = _directory(file, end, budget)
    begin = ends_at - size - offset
    if not begin >= 0 or size > DIRECTORY_BYTES_MAX:
        raise ValueError("not an archive")
    budget.searched -= size
    file.seek(ends_at - size)
    listed = file.read(size)
    return begin, [entry for entry in _listed(file, listed, begin, ends_at) if entry.end > entry.start]


def _directory(file: IO[bytes], end: int, budget: _Budget) -> tuple[int, int, int]:
    """Size of the central directory, its offset in the archive, and where it ends in the file."""
    file.seek(max(0, end - 20))
    before = file.read(20 + 22)
    locator, record = (before[:20], before[20:]) if end >= 20 else (b"", before)
    size, offset = struct.unpack_from("<II", record, 12)
    if locator[:4] != LOCATOR64:
        return size, offset, end
    at = _find_last(file, END64, end, budget)
    if at is None or end - at > 4096:
        raise ValueError("not an archive")
    file.seek(at)
    size, offset = struct.unpack_from("<QQ", file.read(56), 40)
    return size, offset, at


def _listed(file: IO[bytes], directory: bytes, begin: int, limit: int) -> Iterator[Member]:
    at = 0
    while at < len(directory):
        if directory[at : at + 4] != b"PK\x01\x02":
            raise ValueError("not an archive")
        (method,) = struct.unpack_from("<H", directory, at + 10)
        packed, unpacked, name_bytes, extra_bytes, comment_bytes = struct.unpack_from("<IIHHH", directory, at + 20)
        (offset,) = struct.unpack_from("<I", directory, at + 42)
        name = directory[at + 46 : at + 46 + name_bytes]
        extra = directory[at + 46 + name_bytes : at + 46 + name_bytes + extra_bytes]
        unpacked, packed, offset = _large(extra, [unpacked, packed, offset])
        at += 46 + name_bytes + extra_bytes + comment_bytes
        if method == 0:
            start = _content(file, begin + offset)
            if not begin <= start <= start + packed <= limit:
                raise ValueError("not an archive")
            yield Member(name.decode(errors="replace"), start, start + packed)


def _large(extra: bytes, values: list[int]) -> list[int]:
    """Those that need 64 bits are in the extra field with the number 1, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{size // 8}Q", extra, at + 4))
            return [next(numbers, value) if value == _FULL else value for value in values]
        at += 4 + size
    return values


def _content(file: IO[bytes], header: int) -> int:
    """Where the content behind this local header begins."""
    file.seek(header)
    head = file.read(30)
    if head[:4] != b"PK\x03\x04":
        raise ValueError("not an archive")
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    return int(header + 30 + name_bytes + extra_bytes)
