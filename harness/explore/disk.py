"""Builds the files of a state of the disk from the changes that reached the disk."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from harness.explore.file_systems import Change, Data, Entry, Size
from harness.explore.operations import ROOT

_COPY_BYTES = 1 << 20


@dataclass
class _Content:
    """The content of one file on the disk, as pieces of the recorded data. Later pieces overwrite earlier pieces. Parts
    of a file that no piece covers read as zeros."""

    size: int = 0
    pieces: list[Data | Size] = field(default_factory=list)


@dataclass
class Disk:
    """The names and contents of all files in a state of the disk after a crash. `files` maps each path to the file's
    inode, and `links` maps each symbolic link to its target."""

    folders: list[str]
    files: dict[str, int]
    links: dict[str, str]
    contents: dict[int, _Content]

    @property
    def key(self) -> tuple[object, ...]:
        """Returns a key that is equal for two states of the disk with the same names and contents."""
        files = sorted((path, tuple(self._of(inode).pieces)) for path, inode in self.files.items())
        return tuple(sorted(self.folders)), tuple(files), tuple(sorted(self.links.items()))

    @property
    def names(self) -> frozenset[str]:
        return frozenset([*self.folders, *self.files, *self.links])

    def _of(self, inode: int) -> _Content:
        return self.contents.get(inode, _Content())

    def read(self, path: str, data: BinaryIO) -> bytes:
        """Returns the content of the file at `path`. `data` is the file with the bytes of all recorded writes."""
        content, found = self._of(self.files[path]), bytearray()
        for piece in content.pieces:
            if isinstance(piece, Size):
                del found[piece.size :]
                found.extend(bytes(piece.size - len(found)))
                continue
            found.extend(bytes(max(0, piece.offset + piece.size - len(found))))
            data.seek(piece.data)
            found[piece.offset : piece.offset + piece.size] = data.read(piece.size)
        return bytes(found)

    def write(self, folder: pathlib.Path, data: BinaryIO) -> None:
        """Writes the files and folders of this disk state into an empty folder. Raises `OSError` if the disk is
        full."""
        for name in sorted(self.folders):
            (folder / name).mkdir()
        first: dict[int, pathlib.Path] = {}
        for path, inode in self.files.items():
            if inode in first:
                os.link(first[inode], folder / path)
                continue
            first[inode] = folder / path
            with open(folder / path, "xb") as file:
                for piece in self._of(inode).pieces:
                    if isinstance(piece, Size):
                        file.truncate(piece.size)
                    else:
                        data.seek(piece.data)
                        file.seek(piece.offset)
                        for chunk in _chunks(data, piece.size):
                            file.write(chunk)
        for path, target in self.links.items():
            os.symlink(target, folder / path)


def _chunks(data: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := data.read(min(size, _COPY_BYTES))):
        size -= len(chunk)
        yield chunk


def disk_of(changes: Sequence[Change], kept: Iterable[int], empty_folders: bool = True) -> Disk:
    """Returns the state of the disk if only the changes `kept` have reached the disk. If `empty_folders` is False,
    folders without files are left out, as in an S3 bucket."""
    entries: dict[int, dict[str, Entry]] = {}
    contents: dict[int, _Content] = {}
    for number in sorted(kept):
        for part in changes[number].parts:
            if isinstance(part, Entry):
                names = entries.setdefault(part.folder, {})
                names.pop(part.name, None)
                if part.inode is not None:
                    names[part.name] = part
                continue
            content = contents.setdefault(part.inode, _Content())
            content.pieces.append(part)
            end = part.size if isinstance(part, Size) else part.offset + part.size
            content.size = end if isinstance(part, Size) else max(content.size, end)
    disk = Disk([], {}, {}, contents)
    _walk(disk, entries, ROOT, "", set())
    if not empty_folders:
        kept_folders = {str(parent) for path in disk.files for parent in pathlib.PurePosixPath(path).parents}
        disk.folders[:] = [name for name in disk.folders if name in kept_folders]
    return disk


def _walk(disk: Disk, entries: dict[int, dict[str, Entry]], folder: int, prefix: str, above: set[int]) -> None:
    """Adds the names below a folder to `disk`. `above` holds the folders above this folder, to prevent an endless walk
    if a damaged recording makes a folder its own child."""
    for name, entry in entries.get(folder, {}).items():
        path = f"{prefix}{name}"
        if entry.link is not None:
            disk.links[path] = entry.link
        elif not entry.is_folder:
            disk.files[path] = entry.inode or 0
        elif entry.inode is not None and entry.inode not in above:
            disk.folders.append(path)
            _walk(disk, entries, entry.inode, f"{path}/", above | {entry.inode})
