"""Reads the zip archives that `torch.save` writes: one in each file or, in shards of DCP, many in a file.

Archives are searched from the end of the file: an archive's length shows where the archive before it ends.
"""

import io
import os
import struct
import zipfile
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

BEGIN, END = b"PK\x03\x04", b"PK\x05\x06"
DIRECTORY_BYTES_MAX = 16 * 2**20  # 100,000 files
SEARCH_BYTES = 2**20
SEARCHED_MAX = 2**30  # bytes looked at for the ends of archives, in one file: a hole of terabytes has none
WRONG_BYTES = SEARCHED_MAX // 10_000  # what an end that turns out to be none counts for
NAME_CHARS = 200
_END_BYTES, _BEGIN_BYTES = 22, 30
_NO_ARCHIVE = (zipfile.BadZipFile, LookupError, struct.error, NotImplementedError, OverflowError)


class TooLarge(ValueError):
    """Raised for a checkpoint with more data than the harness examines."""


class Member(NamedTuple):
    """An uncompressed file in an archive of `torch.save`: its name, and its position from byte `start` to `end`."""

    name: str
    start: int
    end: int
    crc32: int
    packed: bool


class _Window:
    """A part of a file, which can be read like a file. Refuses large reads, which a damaged archive can cause."""

    def __init__(self, file: IO[bytes], begin: int, end: int):
        self._file, self.begin, self.end, self._at = file, begin, end, begin
        self.read_bytes = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self.begin

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = (self.begin, self._at, self.end)[whence] + offset
        if at < self.begin:
            raise io.UnsupportedOperation("before its begin")  # an `OSError` for zipfile, a `ValueError` for us
        self._at = at
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.end - self._at)
        size = left if size < 0 else min(size, left)
        if size > DIRECTORY_BYTES_MAX:
            raise TooLarge(f"a directory of {size:,} bytes is not looked into")
        if not size:
            return b""
        self._file.seek(self._at)
        self._at += size
        self.read_bytes += size
        return self._file.read(size)


def window(file: IO[bytes]) -> IO[bytes]:
    """Opens a whole file for reading, but refuses to read more than `DIRECTORY_BYTES_MAX` at once."""
    return cast(IO[bytes], _Window(file, 0, file.seek(0, os.SEEK_END)))


def members(file: IO[bytes], begin: int, end: int) -> tuple[list[Member], int]:
    """Returns the files in the last archive of a part of a file, and how many bytes follow the archive.

    Raises `ValueError` if the archive is missing or damaged, or does not begin where the part of the file begins.
    """
    at, found = _read(_Window(file, begin, end))
    last = end - (at - begin)  # torch counts positions from the begin of the file, zipfile from the archive's
    if at != begin:
        at, found = _read(_Window(file, begin, last))
    if at != begin:
        raise ValueError("it does not begin where the file does")
    return found, end - _find_end(file, last, last - begin)[0] - _END_BYTES


def entries(file: IO[bytes]) -> Iterator[Member]:
    """Yields the non-empty files of all archives in a file, the last archive first. Skips bytes between archives."""
    end, left = file.seek(0, os.SEEK_END), SEARCHED_MAX
    while left > 0:
        at, searched = _find_end(file, end, left)
        window = _Window(file, 0, at + _END_BYTES)
        try:
            end, found = _read(window)
        except ValueError:
            end, found, left = at, [], left - WRONG_BYTES
        left -= searched + window.read_bytes
        yield from (each for each in found if each.end > each.start and not each.packed)


def is_complete(file: IO[bytes]) -> bool:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _END_BYTES))
    try:
        return file.read(4) == END and _read(_Window(file, 0, end)) is not None
    except ValueError:
        return False


def _find_end(file: IO[bytes], end: int, most: int) -> tuple[int, int]:
    look, searched = 4096, 0  # an end is mostly close
    while end >= len(END) and searched < most:
        begin, look = max(0, end - look), min(2 * look, SEARCH_BYTES)
        file.seek(begin)
        searched += end - begin
        found = file.read(end - begin).rfind(END)
        if found >= 0:
            return begin + found, searched
        end = begin + len(END) - 1 if begin else 0
    return 0, most


def _read(window: _Window) -> tuple[int, list[Member]]:
    try:
        with zipfile.ZipFile(window) as opened:
            told = opened.infolist()
    except _NO_ARCHIVE as error:
        raise ValueError(str(error)) from error
    begin = min((each.header_offset for each in told), default=window.end - window.begin - _END_BYTES)
    return window.begin + begin, [_member(window, each) for each in told if not each.is_dir()]


def _member(window: _Window, told: zipfile.ZipInfo) -> Member:
    window.seek(told.header_offset)
    head = window.read(_BEGIN_BYTES)
    if head[:4] != BEGIN or len(head) < _BEGIN_BYTES:
        raise ValueError(f"{told.filename[:NAME_CHARS]} is not where the directory says")
    start = window.begin + window.tell() + sum(struct.unpack_from("<HH", head, 26))
    if start + told.compress_size > window.end:
        raise ValueError(f"{told.filename[:NAME_CHARS]} ends behind the end of the file")
    packed = bool(told.compress_type or told.flag_bits & 1)
    return Member(told.filename, start, start + told.compress_size, told.CRC, packed)
