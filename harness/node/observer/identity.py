"""Makes short texts that identify the contents of a checkpoint's files. Uses only the standard library.

Three kinds of text identify contents:

* `lineage` tells which save a file comes from. A lineage is a hash of a `torch.save` archive's checksum table, of a DCP
  folder's `.metadata`, or of samples of any other file. Damage to a tensor does not change the checksum table or
  `.metadata`.
* `tensors` tells whether two saves hold the same tensors: it hashes the tensors' checksums, without their names.
* `digest` tells whether two contents have the same bytes. A digest of at most `WHOLE_BYTES_MAX` bytes covers all bytes,
  and begins with `whole:`. A digest of more bytes covers only samples of the bytes, and begins with `sampled:`. Equal
  `sampled:` digests do not prove equal contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import stat
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

WHOLE_BYTES_MAX = 256 * 2**20  # about half a second to read
BLOCK_BYTES = 2**20
SAMPLES, SAMPLE_BYTES = 64, 4096
FILES_MAX = 10_000  # of one checkpoint
DCP_METADATA = ".metadata"
NUMBER_BYTES_MAX = 16  # a counter, or the state of a GPU's random generator
GENERATOR_BYTES = 5056  # the state of torch's random generator on CPUs


@dataclass(frozen=True)
class Content:
    """The digest and the size in bytes of all files of a checkpoint together."""

    digest: str
    size: int  # bytes


def lineage(path: str) -> str | None:
    """Returns a hash that is equal for all copies of one saved file or DCP folder; `None` if the file is unreadable."""
    try:
        where = pathlib.Path(path)
        if where.is_dir():
            return _sampled(where / DCP_METADATA)
        with _opened(where) as file:
            return lineage_of(file)
    except OSError:
        return None


def lineage_of(file: IO[bytes]) -> str:
    """Returns a hash that identifies the contents of an open file or buffer. Does not change the file's read
    position."""
    at = file.tell()
    try:
        return _checksums(file) or _samples(file)
    finally:
        file.seek(at)


def of(files: Iterable[str]) -> Content | None:
    """Returns one digest and the total size of all `files`, or `None` if a file is unreadable. The digest does not
    depend on the order or the folder of the files."""
    try:
        paths = sorted((os.path.basename(path), path) for path in files)
        size = sum(os.stat(path).st_size for _, path in paths)
        kind = "whole" if size <= WHOLE_BYTES_MAX else "sampled"
        read = _whole if kind == "whole" else _sampled
        told = [f"{name}:{read(pathlib.Path(path))}" for name, path in paths] if len(paths) > 1 else [read(paths[0][1])]
    except (OSError, IndexError):
        return None
    return Content(f"{kind}:{text_of(chr(10).join(told))}", size)


def text_of(text: str) -> str:
    return _hash(text.encode()).hexdigest()


def files_below(path: str) -> list[str]:
    """Returns the files of a checkpoint, at most `FILES_MAX`: `path` itself or, for a folder, all files below it."""
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    for folder, _, names in os.walk(path):
        found += [os.path.join(folder, name) for name in names if len(found) < FILES_MAX]
    return sorted(found)[:FILES_MAX]


def _checksums(file: IO[bytes]) -> str | None:
    """Returns a hash of a zip archive's checksum table, or `None` for other files. The hash leaves out the name of the
    archive's top folder."""
    file.seek(0)
    if file.read(2) != b"PK":
        return None
    with contextlib.suppress(Exception), zipfile.ZipFile(file) as archive:
        rows = (f"{each.filename.partition('/')[2]}:{each.CRC}:{each.file_size}" for each in archive.infolist())
        return f"checksums:{text_of(chr(10).join(sorted(rows)))}"
    return None


def tensors(files: Iterable[str]) -> str | None:
    """Returns a hash of all tensors in these `torch.save` archives, in any order, or `None` if there are no tensors."""
    found: list[str] = []
    for path in files:
        with contextlib.suppress(Exception), _opened(path) as file, zipfile.ZipFile(file) as archive:
            found += [
                f"{each.CRC}:{each.file_size}"
                for each in archive.infolist()
                if "/data/" in each.filename and each.file_size > NUMBER_BYTES_MAX and each.file_size != GENERATOR_BYTES
            ]
    return text_of(chr(10).join(sorted(found))) if found else None


def _whole(path: pathlib.Path | str) -> str:
    digest = _hash()
    with _opened(path) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sampled(path: pathlib.Path | str) -> str:
    with _opened(path) as file:
        return _samples(file)


def _opened(path: pathlib.Path | str) -> IO[bytes]:
    """Opens a regular file. Raises `OSError` for other kinds of files, because a pipe would make the training wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(f"{path}: not a regular file")


def _samples(file: IO[bytes]) -> str:
    size = file.seek(0, io.SEEK_END)
    digest = _hash(str(size).encode())
    places: Iterable[int] = range(0, size, SAMPLE_BYTES)
    if size > SAMPLES * SAMPLE_BYTES:
        places = (index * (size - SAMPLE_BYTES) // (SAMPLES - 1) for index in range(SAMPLES))
    for at in places:
        file.seek(at)
        digest.update(file.read(SAMPLE_BYTES))
    return f"samples:{digest.hexdigest()}"


def _hash(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)
