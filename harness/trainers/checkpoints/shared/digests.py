"""What tells the content of one checkpoint from another's: SHA-256 over its files, of very large ones over samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import IO

from harness.trainers.checkpoints.shared.place import CheckpointFolder

WHOLE_BYTES_MAX = 256 * 2**20  # a larger file is sampled
SAMPLES, SAMPLE_BYTES = 64, 2**20


def digest(place: CheckpointFolder, files: Sequence[str]) -> str:
    """Of names, sizes and bytes. Raises `OSError` or `FaultError` where a file cannot be read."""
    found = hashlib.sha256()
    for path in sorted(files):
        with place.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            found.update(f"{path}\0{size}\0".encode())
            for part in _parts(file, size):
                found.update(part)
    return found.hexdigest()


def is_sampled(place: CheckpointFolder, files: Sequence[str]) -> bool:
    return any(place.sizes.get(path, 0) > WHOLE_BYTES_MAX for path in files)


def _parts(file: IO[bytes], size: int) -> Iterator[bytes]:
    """All of it, or samples from its first to its last byte, equally far apart."""
    if size <= WHOLE_BYTES_MAX:
        file.seek(0)
        while part := file.read(SAMPLE_BYTES):
            yield part
        return
    for number in range(SAMPLES):
        file.seek(number * (size - SAMPLE_BYTES) // (SAMPLES - 1))
        yield file.read(SAMPLE_BYTES)
