"""Defines a FUSE file system that records each change of its files: the operations in order, and all written bytes.

The record consists of two files in a folder that no node sees. The file `operations.jsonl` has one operation on each
line, and `data` holds the written bytes one after the other. Each operation has the fields of
`harness.explore.operations.Operation`. The record gives each new file a new `inode` number. A line `{"ended": REASON}`
says that the record is incomplete.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import threading
import time

from harness.node.fuse import flushes, wire
from harness.node.fuse.fuse_filesystem import FileSystem
from harness.node.fuse.rules import Verdict
from harness.node.fuse.wire import Code, FuseRequest

OPERATIONS, DATA = "operations.jsonl", "data"
OPERATIONS_MAX = 200_000
DATA_BYTES_MAX = 4 * 2**30

_CHANGING = {
    *(Code.CREATE, Code.MKNOD, Code.MKDIR, Code.SYMLINK, Code.LINK, Code.RENAME, Code.RENAME2, Code.UNLINK, Code.RMDIR),
    *(Code.OPEN, Code.WRITE, Code.SETATTR, Code.FALLOCATE, Code.FSYNC, Code.FSYNCDIR, Code.FLUSH, Code.RELEASE),
}


class Record:
    """The recorded changes of a folder. At its size limit or on a full disk, the record ends but the job continues."""

    def __init__(self, folder: pathlib.Path, operations_max: int = OPERATIONS_MAX, bytes_max: int = DATA_BYTES_MAX):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._lines, self._data = (os.open(folder / name, flags, 0o600) for name in (OPERATIONS, DATA))
        self._operations_max, self._bytes_max = operations_max, bytes_max
        self._count = self._bytes = 0
        self._ended = False

    def add(self, kind: str, path: str, inode: int = 0, data: bytes | memoryview = b"", **more: int | str) -> None:
        if self._ended:
            return
        if self._count >= self._operations_max or self._bytes + len(data) > self._bytes_max:
            self.end(f"more than {self._operations_max:,} operations or {self._bytes_max >> 20:,} MiB of data")
            return
        line = {"kind": kind, "path": path, "inode": inode, **more, "t_ns": time.time_ns()}
        if data:
            line |= {"data": self._bytes, "size": len(data)}
        try:
            self._write(self._data, data)
            self._write(self._lines, json.dumps(line).encode() + b"\n")
        except OSError as error:
            self.end(f"it cannot be written: {error.strerror}")
            return
        self._count += 1
        self._bytes += len(data)

    def end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        os.ftruncate(self._data, self._bytes)
        try:
            self._write(self._lines, b"\n" + json.dumps({"ended": why}).encode() + b"\n")
        except OSError:
            os.unlink(f"/proc/self/fd/{self._lines}")

    @staticmethod
    def _write(descriptor: int, data: bytes | memoryview) -> None:
        while data:
            data = data[os.write(descriptor, data) :]


class RecordingFileSystem(FileSystem):
    def __init__(self, folder: pathlib.Path, record: pathlib.Path):
        """Opens the folder, which must be empty, and the record. Raises `OSError` if `record` has a record already."""
        super().__init__(folder)
        if os.listdir(folder):
            raise OSError(errno.ENOTEMPTY, f"{folder}: a folder to be recorded must be empty")
        self._record = Record(record)
        self._order = threading.RLock()
        self._last_inode = 0
        self._inodes: dict[str, int] = {}  # path → number in the record
        self._open_files: dict[int, int] = {}  # handle → number in the record
        self._written: set[int] = set()  # since the file was closed last

    def _perform(self, request: FuseRequest, verdict: Verdict | None) -> bytes:
        if request.code not in _CHANGING:
            return super()._perform(request, verdict)
        with self._order:  # else the order of the answers were not that of the changes
            return super()._perform(request, verdict)

    def _add_new(self, kind: str, path: str, **more: int | str) -> int:
        self._last_inode += 1
        self._inodes[path] = self._last_inode
        self._record.add(kind, path, self._last_inode, b"", **more)
        return self._last_inode

    def _inode(self, path: str) -> int:
        if path not in self._inodes:
            self._record.end(f"{path}: was made from outside of the nodes")
        return self._inodes.get(path, 0)

    def _truncated(self, path: str, inode: int, size: int) -> None:
        self._written.add(inode)
        self._record.add("truncate", path, inode, size=size)

    def _lookup(self, request: FuseRequest) -> bytes:
        if request.node == wire.ROOT and request.names(0) == [flushes.MARK]:
            with self._order:
                self._record.add("sync", "")
        return super()._lookup(request)

    def _create(self, request: FuseRequest) -> bytes:
        flags, *_ = wire.CREATE_IN.unpack_from(request.body)
        path = self._named(request, wire.CREATE_IN.size)
        known = os.path.lexists(self._real(path))
        body = super()._create(request)
        (handle, *_) = wire.OPEN_OUT.unpack_from(body, len(body) - wire.OPEN_OUT.size)
        inode = self._inode(path) if known else self._add_new("create", path)
        self._open_files[handle] = inode
        self._written.add(inode)
        if known and flags & os.O_TRUNC:
            self._truncated(path, inode, 0)
        return body

    def _mknod(self, request: FuseRequest) -> bytes:
        body = super()._mknod(request)
        self._add_new("create", self._named(request, wire.MKNOD_IN.size))
        return body

    def _mkdir(self, request: FuseRequest) -> bytes:
        body = super()._mkdir(request)
        self._add_new("mkdir", self._named(request, wire.MKDIR_IN.size))
        return body

    def _symlink(self, request: FuseRequest) -> bytes:
        body = super()._symlink(request)
        name, target = request.names(0)
        self._add_new("symlink", self._paths.child(request.node, name), other=target)
        return body

    def _link(self, request: FuseRequest) -> bytes:
        (old,) = wire.HANDLE_IN.unpack_from(request.body)
        body = super()._link(request)
        path, new = self._paths.of(old), self._named(request, wire.HANDLE_IN.size)
        self._inodes[new] = self._inode(path)
        self._record.add("link", path, self._inodes[new], other=new)
        return body

    def _unlink(self, request: FuseRequest) -> bytes:
        path = self._named(request)
        body = super()._unlink(request)
        kind = "rmdir" if request.code == Code.RMDIR else "unlink"
        self._record.add(kind, path, self._inode(path))
        self._inodes.pop(path, None)
        return body

    _rmdir = _unlink

    def _rename(self, request: FuseRequest) -> bytes:
        old, new = self._rename_paths(request)
        body = super()._rename(request)
        inode = self._inode(old)
        if self._inodes.get(new) != inode:  # two names of one file: nothing happened
            self._inodes.pop(new, None)
            for path in [each for each in self._inodes if each == old or each.startswith(old + "/")]:
                self._inodes[new + path[len(old) :]] = self._inodes.pop(path)
            self._record.add("rename", old, inode, other=new)
        return body

    def _open(self, request: FuseRequest) -> bytes:
        flags, _ = wire.OPEN_IN.unpack_from(request.body)
        path = self._paths.of(request.node)
        body = super()._open(request)
        (handle, *_) = wire.OPEN_OUT.unpack_from(body)
        self._open_files[handle] = self._inode(path)
        if flags & os.O_TRUNC:
            self._truncated(path, self._inode(path), 0)
        return body

    def _write_part(self, request: FuseRequest, allowed: int) -> bytes:
        handle, offset, *_ = wire.TRANSFER_IN.unpack_from(request.body)
        body = super()._write_part(request, allowed)
        written, _ = wire.WRITE_OUT.unpack_from(body)
        inode = self._open_files[handle]
        self._written.add(inode)
        data = request.body[wire.TRANSFER_IN.size :][:written]
        self._record.add("write", self._paths.of(request.node), inode, data, offset=offset)
        return body

    def _setattr(self, request: FuseRequest) -> bytes:
        valid, _, handle, size, *_ = wire.SETATTR_IN.unpack_from(request.body)
        body = super()._setattr(request)
        if valid & wire.SET_SIZE:
            path = self._paths.of(request.node)
            inode = self._open_files[handle] if valid & wire.SET_HANDLE else self._inode(path)
            self._truncated(path, inode, size)
        return body

    def _fallocate(self, request: FuseRequest) -> bytes:
        handle, offset, size, *_ = wire.FALLOCATE_IN.unpack_from(request.body)
        before = os.fstat(handle).st_size
        body = super()._fallocate(request)
        if offset + size > before:
            self._truncated(self._paths.of(request.node), self._open_files[handle], offset + size)
        return body

    def _fsync(self, request: FuseRequest) -> bytes:
        body = super()._fsync(request)
        (handle,) = wire.HANDLE_IN.unpack_from(request.body)
        self._record.add("fsync", self._paths.of(request.node), self._open_files[handle])
        return body

    def _fsyncdir(self, request: FuseRequest) -> bytes:
        body = super()._fsyncdir(request)
        path = self._paths.of(request.node)
        self._record.add("fsync_dir", path, self._inodes.get(path, 0))
        return body

    def _flush(self, request: FuseRequest) -> bytes:
        """Records that a file was closed, if it was written since it was last closed."""
        inode = self._open_files[wire.HANDLE_IN.unpack_from(request.body)[0]]
        if inode in self._written:
            self._written.discard(inode)
            self._record.add("close", self._paths.of(request.node), inode)
        return b""

    def _release(self, request: FuseRequest) -> bytes:
        self._open_files.pop(wire.HANDLE_IN.unpack_from(request.body)[0], None)
        return super()._release(request)
