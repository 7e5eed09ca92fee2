"""Where the bytes of tensors lie in a file, by its format: an archive of torch, a shard of DCP, or safetensors."""

from __future__ import annotations

import itertools
import os
import re
import struct
from typing import IO

import msgspec

from harness.errors import FaultError
from harness.trainers.checkpoints.shared import archives
from harness.trainers.checkpoints.shared.place import CheckpointFolder

Span = tuple[int, int]  # from the first byte up to, not with, the second

ARCHIVE, SAFETENSORS = "archive", "safetensors"
ENTRIES_A_TENSOR = 16  # an archive of DCP has seven files for one tensor
HEADER_BYTES_MAX = 100 * 2**20  # as safetensors itself allows
_TENSOR = re.compile(r"(?:^|/)data/[^/]+$")
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*(\d{1,19})\s*,\s*(\d{1,19})\s*\]')  # a quote in a text is escaped


def spans(place: CheckpointFolder, path: str) -> list[Span]:
    """Sorted, disjoint, none empty. None where the format is not known, or the file holds no tensor."""
    try:
        with place.open(path) as file:
            kind = _format(file)
            if kind == SAFETENSORS:
                size = file.seek(0, os.SEEK_END)
                begin = 8 + _header_bytes(file)
                return [(begin, size)] if begin < size else []
            if kind == ARCHIVE:
                found = (entry for entry in archives.entries(file) if _TENSOR.search(entry.name))
                return sorted((entry.start, entry.end) for entry in found)
            return []
    except (OSError, FaultError, ValueError):
        return []


def each_of(file: IO[bytes], most: int) -> list[Span] | None:
    """The same for each tensor; of `torch.save`, for each storage. Stops soon after the first `most`.

    None where the format is none of tensors, or the file is damaged.
    """
    try:
        kind = _format(file)
        if kind == SAFETENSORS:
            begin = 8 + _header_bytes(file)
            named = itertools.islice(_OFFSETS.finditer(_header(file)), most + 1)
            return _disjoint([(begin + int(each[1]), begin + int(each[2])) for each in named], file)
        if kind != ARCHIVE:
            return None
        limit = ENTRIES_A_TENSOR * (most + 1)
        found = list(itertools.islice(archives.entries(file), limit))
        if len(found) == limit or not any(entry.name.endswith("data.pkl") for entry in found):
            return None  # far too many files are in it, or it is no archive of torch
        return _disjoint([(entry.start, entry.end) for entry in found if _TENSOR.search(entry.name)], file)
    except (ValueError, LookupError, RecursionError):
        return None


def _disjoint(spans: list[Span], file: IO[bytes]) -> list[Span]:
    """Sorted, none empty. Raises `ValueError` where two overlap, or one is not in the file: it would be read twice."""
    found, at = sorted(span for span in spans if span[0] != span[1]), 0
    for start, end in [*found, (file.seek(0, os.SEEK_END),) * 2]:
        if not at <= start <= end:
            raise ValueError("tensors that overlap")
        at = end
    return found


def is_complete(place: CheckpointFolder, path: str) -> bool:
    """Whether a file of a known format has its end. A file of another format is taken as it is."""
    try:
        with place.open(path) as file:
            kind = _format(file)
            if kind == ARCHIVE:
                return archives.is_complete(file)
            if kind != SAFETENSORS:
                return True
            # All that its header names must be there. This takes the memory of the header and no more.
            size, header_bytes = file.seek(0, os.SEEK_END), _header_bytes(file)
            if size < 8 + header_bytes:
                return False
            ends = (int(found[2]) for found in _OFFSETS.finditer(_header(file)))
            return size == 8 + header_bytes + max(ends, default=0)
    except (OSError, FaultError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _format(file: IO[bytes]) -> str | None:
    file.seek(0)
    head = file.read(9)
    if head[:4] == b"PK\x03\x04":
        return ARCHIVE
    if len(head) == 9 and head[8:] == b"{" and 2 <= struct.unpack("<Q", head[:8])[0] <= HEADER_BYTES_MAX:
        return SAFETENSORS
    return ARCHIVE if head[:1] == b"\x80" and archives.is_complete(file) else None  # DCP: a value that is no tensor


def _header_bytes(file: IO[bytes]) -> int:
    file.seek(0)
    return int(struct.unpack("<Q", file.read(8))[0])


def _header(file: IO[bytes]) -> bytes:
    """Raises `ValueError` or `RecursionError` where it is no JSON."""
    size = _header_bytes(file)
    file.seek(8)
    header = file.read(size)
    msgspec.json.decode(header, type=msgspec.Raw)  # checks it all, makes nothing of it
    return header
