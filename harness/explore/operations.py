"""Defines the recorded file operations of a job on its checkpoint folder."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

import msgspec


class Kind(enum.StrEnum):
    CREATE = "create"
    MKDIR = "mkdir"
    SYMLINK = "symlink"
    LINK = "link"
    WRITE = "write"
    TRUNCATE = "truncate"
    RENAME = "rename"
    UNLINK = "unlink"
    RMDIR = "rmdir"
    FSYNC = "fsync"
    FSYNC_DIR = "fsync_dir"
    SYNC = "sync"  # of all files and folders: sync() or syncfs()
    CLOSE = "close"


ROOT = 0  # inode of the checkpoint folder
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True)
class Operation:
    """One successful file operation of a job on its checkpoint folder. Paths are relative to the checkpoint folder,
    without a leading slash.

    `inode` is the number of a file or folder, which no other file or folder of the recording ever has. `other` is the
    new path of a rename or link, and the target of a symbolic link. A write puts `size` bytes into the file at
    `offset`; the bytes begin at byte `data` of the recorded data. For a truncation, `size` is the file's new size.
    `t_ns` is the Unix time in ns at which the file system answered.
    """

    kind: Kind
    path: str
    inode: Count = ROOT
    other: str = ""
    offset: Count = 0
    size: Count = 0
    data: Count = 0
    t_ns: Count = 0

    def in_words(self) -> str:
        if self.kind is Kind.WRITE:
            return f"write bytes {self.offset} to {self.offset + self.size} of {self.path}"
        if self.kind is Kind.TRUNCATE:
            return f"truncate {self.path} to {self.size} bytes"
        if self.kind is Kind.FSYNC_DIR:
            return f"fsync the folder {self.path or '.'}"
        if self.kind is Kind.SYNC:
            return "sync all files and folders"
        if self.kind is Kind.RENAME:
            return f"rename {self.path} to {self.other}"
        if self.kind in (Kind.LINK, Kind.SYMLINK):
            return f"{self.kind} {self.path} to {self.other}"
        return f"{self.kind} {self.path}"
