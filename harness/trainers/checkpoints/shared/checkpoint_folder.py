"""Lists the files and links in a folder of checkpoints at one moment, and reads the files safely."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from dataclasses import dataclass, field
from typing import IO

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.trainers.checkpoints.shared import names

ENTRIES_MAX = 100_000


@dataclass(frozen=True)
class CheckpointFolder:
    """The files in a folder of checkpoints at one moment. Paths are relative to `root`, in which nodes may write."""

    root: pathlib.Path
    folder: str
    sizes: dict[str, int] = field(default_factory=dict)
    times_ns: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)  # a device, a pipe, a socket

    @classmethod
    def look(cls, root: pathlib.Path, folder: str) -> CheckpointFolder:
        """Lists the folder now, with at most `ENTRIES_MAX` entries. A missing folder counts as empty."""
        place = cls(root, os.path.normpath(folder))
        with contextlib.suppress(FileNotFoundError), untrusted_files.opened_folder(root, folder) as descriptor:
            place._walk(descriptor)
        return place

    def _walk(self, descriptor: int) -> None:
        for where, folders, files, here in os.fwalk(".", dir_fd=descriptor, follow_symlinks=False):
            if where.count("/") >= untrusted_files.DEPTH_MAX:
                self.unreadable.extend(os.path.normpath(os.path.join(self.folder, where, name)) for name in folders)
                folders.clear()
            for name in sorted([*folders, *files]):
                if self.is_full:
                    return
                self._note(os.path.normpath(os.path.join(self.folder, where, name)), name, here)

    def _note(self, path: str, name: str, here: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                self.sizes[path], self.times_ns[path] = status.st_size, status.st_mtime_ns
            elif stat.S_ISLNK(status.st_mode):
                self.links[path] = os.readlink(name, dir_fd=here)
                return
            elif not stat.S_ISDIR(status.st_mode):
                self.odd.append(path)
                return
            needed = os.R_OK | (os.X_OK if stat.S_ISDIR(status.st_mode) else 0)
            if not os.access(name, needed, dir_fd=here, effective_ids=True):
                self.unreadable.append(path)

    @property
    def is_full(self) -> bool:
        """Returns True if the folder of checkpoints may hold more files than were listed."""
        return len(self.sizes) + len(self.links) >= ENTRIES_MAX

    @property
    def unreadable_folders(self) -> list[str]:
        return [path for path in self.unreadable if path not in self.sizes]

    @property
    def files(self) -> list[str]:
        return sorted(self.sizes)

    def changed_ns(self, path: str) -> int:
        return self.times_ns.get(path, 0)

    def is_temporary(self, path: str) -> bool:
        inside = path.rpartition("/")[2] if path == self.folder else path.removeprefix(f"{self.folder}/")
        return names.is_temporary(inside)

    @property
    def links_away(self) -> list[str]:
        """Returns the links in the folder of checkpoints that point out of the folder, or whose target is missing."""
        seen, leads = {self.folder}, dict[str, str]()
        for file in self.sizes:
            while file not in seen:
                seen.add(file)
                file = os.path.dirname(file)
        for path, target in self.links.items():
            leads[path] = os.path.relpath(self.root / os.path.dirname(path) / target, self.root)
        return [path for path, led in leads.items() if led not in seen]

    def below(self, folder: str) -> list[str]:
        return [path for path in self.files if path.startswith(f"{folder}/")]

    def folders(self) -> list[str]:
        found = {path.rpartition("/")[0] for path in self.sizes}
        return sorted(found, key=lambda path: (-path.count("/"), path))

    def open(self, path: str) -> IO[bytes]:
        """Opens a file of a checkpoint. Raises `OSError` or `FaultError` if the file cannot be read."""
        return untrusted_files.open_reader(self.root, path)

    def read(self, path: str, limit_bytes: int) -> bytes:
        try:
            with self.open(path) as file:
                return file.read(limit_bytes)
        except (OSError, FaultError):
            return b""
