"""Reads a file once, to compute digests of its parts, and to count zero bytes and infinite numbers in tensors."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np

from harness.trainers.checkpoints.shared.digests import TensorContent, blocks
from harness.trainers.checkpoints.shared.formats import Span

ZEROS_BYTES = 2048  # so many zeros, from a multiple of it, are a hole: a page that is lost has them in any tensor
TENSOR_BYTES_MIN = 17  # a smaller one is a counter, and may be zero
WRITTEN_MIN = 0.5  # of a large file's bytes: else most of it are holes, which take hours to read
LARGE_BYTES = 2**30


class Part(NamedTuple):
    """One part of a file: a tensor, or the bytes between two tensors. `zeros` is the number of bytes in blocks of 2 KiB
    that hold only zeros, and `infinite` is the number of infinite and NaN values."""

    span: Span
    sha256: str
    sound: bool  # False: its checksum differs
    zeros: int
    infinite: int

    @property
    def content(self) -> TensorContent:
        size = self.span.end - self.span.start
        return TensorContent(size, self.sha256, self.zeros == size)


class Unreadable(Exception):
    pass


def parts(file: IO[bytes], spans: Sequence[Span], whole: hashlib._Hash | None = None) -> Iterator[Part]:
    """Yields a file's parts with digests, reading each byte once. Raises `Unreadable` or `OSError` if reading fails."""
    size = file.seek(0, os.SEEK_END)
    written = os.fstat(file.fileno()).st_blocks * 512
    if size > LARGE_BYTES and written < WRITTEN_MIN * size:
        raise Unreadable(f"most of its {size:,} bytes are holes: {written:,} were written")
    at = 0
    for span in sorted((span for span in spans if span.start < span.end), key=lambda span: span.start):
        if span.start < at or span.end > size:
            raise Unreadable(f"{span.name} lies over something else, or behind the end")
        if at < span.start:
            yield _part(file, Span("", at, span.start), whole)
        yield _part(file, span, whole)
        at = span.end
    if at < size:
        yield _part(file, Span("", at, size), whole)


def _part(file: IO[bytes], span: Span, whole: hashlib._Hash | None) -> Part:
    digest, crc, zeros, infinite, left = hashlib.sha256(), 0, 0, 0, span.end - span.start
    for block in blocks(file, (span.start, span.end)):
        left -= len(block)
        digest.update(block)
        if whole:
            whole.update(block)
        if span.crc32 is not None:
            crc = zlib.crc32(block, crc)
        if span.name and span.end - span.start >= TENSOR_BYTES_MIN:
            zeros += _zeros(block)
            infinite += _infinite(block, span.number)
    if left:
        raise Unreadable("it becomes shorter while it is read")
    return Part(span, digest.hexdigest(), span.crc32 in (None, crc), zeros, infinite)


def _zeros(block: bytes) -> int:
    taken = np.frombuffer(block, np.uint8)
    whole = len(taken) // ZEROS_BYTES * ZEROS_BYTES
    holes = int((~taken[:whole].reshape(-1, ZEROS_BYTES).any(axis=1)).sum()) * ZEROS_BYTES
    rest = taken[whole:]
    return holes + (len(rest) if len(rest) and not rest.any() else 0)


def _infinite(block: bytes, number: str) -> int:
    if not number:
        return 0
    if number == "bf16":
        exponent = np.frombuffer(block[: len(block) // 2 * 2], "<u2") & 0x7F80
        return int((exponent == 0x7F80).sum())
    width = int(number[1])
    return int((~np.isfinite(np.frombuffer(block[: len(block) // width * width], f"<{number}"))).sum())
