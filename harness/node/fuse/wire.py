"""Encodes and decodes the messages between the kernel and a FUSE file system: /dev/fuse, protocol 7.31
(linux/fuse.h)."""

from __future__ import annotations

import enum
import errno
import os
import struct
from dataclasses import dataclass

MAJOR, MINOR = 7, 31
WRITE_BYTES_MAX = 1 << 20
BUFFER_BYTES = WRITE_BYTES_MAX + 4096
ROOT = 1

IN_HEADER = struct.Struct("<IIQQIIIHH")  # length opcode unique node uid gid pid extensions padding
OUT_HEADER = struct.Struct("<IiQ")  # length error unique
INIT_IN = struct.Struct("<IIII")  # major minor readahead flags
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")  # … background congestion max_write granularity max_pages alignment flags2
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")  # node generation entry_valid attributes_valid and their nanoseconds
ATTRIBUTES_VALID = struct.Struct("<QII")
GETATTR_IN = struct.Struct("<IIQ")  # flags – handle
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
OPEN_IN = struct.Struct("<II")
OPEN_OUT = struct.Struct("<QII")
CREATE_IN = struct.Struct("<IIII")  # flags mode umask –
MKNOD_IN = struct.Struct("<IIII")  # mode device umask –
MKDIR_IN = struct.Struct("<II")  # mode umask
RENAME_IN = struct.Struct("<Q")
RENAME2_IN = struct.Struct("<QII")
TRANSFER_IN = struct.Struct("<QQIIQII")  # handle offset size flags owner flags –: read, write, list
WRITE_OUT = struct.Struct("<II")
HANDLE_IN = struct.Struct("<Q")
FALLOCATE_IN = struct.Struct("<QQQII")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
DIRENT = struct.Struct("<QQII")

ASYNC_READ, ATOMIC_TRUNCATE, BIG_WRITES = 1 << 0, 1 << 3, 1 << 5
PARALLEL_DIRECTORIES, MAX_PAGES = 1 << 18, 1 << 22
FLAGS = ASYNC_READ | ATOMIC_TRUNCATE | BIG_WRITES | PARALLEL_DIRECTORIES | MAX_PAGES

SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_HANDLE, SET_ATIME_NOW, SET_MTIME_NOW = (
    1 << bit for bit in range(9)
)
GETATTR_HANDLE = 1
INTERRUPT_BIT = 1  # of a request's number: the answer is about its interruption


class Code(enum.IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


@dataclass(frozen=True)
class FuseRequest:
    """A request of the kernel to the file system. `body` holds the bytes after the header, and is valid only until the
    next request is read."""

    code: int
    unique: int
    node: int
    pid: int
    body: memoryview

    def kept(self) -> FuseRequest:
        """Returns a copy of the request that stays valid after the next request is read."""
        return FuseRequest(self.code, self.unique, self.node, self.pid, memoryview(bytes(self.body)))

    def names(self, start: int) -> list[str]:
        """Returns the zero-terminated names after the first `start` bytes of the body."""
        return [os.fsdecode(name) for name in bytes(self.body[start:]).split(b"\0")[:-1]]


def read_request(device: int, buffer: bytearray) -> FuseRequest | None:
    """Reads the kernel's next request. Returns `None` once the file system is unmounted."""
    while True:
        try:
            size = os.readv(device, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # taken back before we had it
                continue
            raise
        _, code, unique, node, _, _, pid, _, _ = IN_HEADER.unpack_from(buffer)
        return FuseRequest(code, unique, node, pid, memoryview(buffer)[IN_HEADER.size : size])


def reply(device: int, unique: int, body: bytes | memoryview = b"", error: int = 0) -> None:
    header = OUT_HEADER.pack(OUT_HEADER.size + len(body), -error, unique)
    try:
        os.writev(device, [header, body] if body else [header])
    except OSError as problem:
        if problem.errno not in (errno.ENOENT, errno.ENODEV):  # whoever asked is gone
            raise


def refuse_interrupts(device: int, unique: int) -> None:
    """Tells the kernel never to send interrupts for waiting requests. Must be called before request `unique` is
    answered. Old kernels ignore this call."""
    reply(device, unique | INTERRUPT_BIT, error=errno.ENOSYS)


def pack_attributes(found: os.stat_result, uid: int, gid: int) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    size = found.st_ino, found.st_size, found.st_blocks
    seconds, rest = [ns // 10**9 for ns in times], [ns % 10**9 for ns in times]
    return ATTRIBUTES.pack(*size, *seconds, *rest, found.st_mode, found.st_nlink, uid, gid, 0, 4096, 0)


def pack_entries(entries: list[tuple[int, str, int]], start: int, room: int) -> bytes:
    """Packs as many folder entries (inode, name, mode) as fit into `room` bytes, from index `start` on."""
    packed = bytearray()
    for position, (inode, name, mode) in enumerate(entries[start:], start + 1):
        encoded = os.fsencode(name)
        record = DIRENT.pack(inode, position, len(encoded), mode >> 12) + encoded
        record += bytes(-len(record) % 8)
        if len(packed) + len(record) > room:
            break
        packed += record
    return bytes(packed)
