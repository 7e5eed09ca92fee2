"""Defines a FUSE file system that shows a folder unchanged, until a fault tells it to delay or refuse file operations.

The file system is mounted over the folder before the nodes start, so that every node sees the file system. Processes
outside of the nodes see the original folder, which holds the durable data. A file operation that must wait gets a
thread of its own, so that other operations are not delayed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from harness.errors import UsageError
from harness.node import kernel, rpc
from harness.node.fuse import wire
from harness.node.fuse.rules import FileRule, Verdict
from harness.node.fuse.wire import Code, FuseRequest
from harness.node.types import StorageRule

READERS = 3
READY_S_MAX = 10.0
NO_ID = 65534  # what the kernel shows of a user or group that has no id in this namespace
DYING_LOOK_S = 0.02
FREE_S_MAX = 2.0  # until the threads that waited for a rule are free, once it has ended
SIGKILL_BIT = 1 << 8

_OPERATIONS = {
    Code.LOOKUP: "lookup",
    Code.GETATTR: "lookup",
    Code.STATFS: "lookup",
    Code.OPEN: "open",
    Code.CREATE: "create",
    Code.READ: "read",
    Code.WRITE: "write",
    Code.FSYNC: "fsync",
    Code.FSYNCDIR: "fsync",
    Code.RENAME: "rename",
    Code.RENAME2: "rename",
    Code.UNLINK: "unlink",
    Code.RMDIR: "unlink",
    Code.MKDIR: "mkdir",
    Code.OPENDIR: "list",
    Code.READDIR: "list",
}
# Where in the body of a request names begin, and how many there are.
_NAMES = {
    Code.LOOKUP: 0,
    Code.UNLINK: 0,
    Code.RMDIR: 0,
    Code.MKDIR: wire.MKDIR_IN.size,
    Code.CREATE: wire.CREATE_IN.size,
}
_SILENT = {Code.FORGET, Code.BATCH_FORGET, Code.INTERRUPT}


class Paths:
    """Maps each FUSE node id, by which the kernel names a file, to the file's current path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[int, str] = {wire.ROOT: ""}
        self._numbers: dict[str, tuple[int, int]] = {}  # path → (number, inode)
        self._last = wire.ROOT

    def of(self, number: int) -> str:
        return self._paths[number]

    def child(self, number: int, name: str) -> str:
        parent = self._paths[number]
        return f"{parent}/{name}" if parent else name

    def number(self, path: str, inode: int) -> int:
        """Returns the FUSE node id of a file. A file that replaced another file gets a new id."""
        with self._lock:
            known = self._numbers.get(path)
            if known is not None and known[1] == inode:
                return known[0]
            self._last += 1
            self._numbers[path] = (self._last, inode)
            self._paths[self._last] = path
            return self._last

    def forget(self, path: str) -> None:
        with self._lock:
            self._numbers.pop(path, None)

    def move(self, old: str, new: str) -> None:
        with self._lock:
            self._numbers.pop(new, None)
            for path in [each for each in self._numbers if each == old or each.startswith(old + "/")]:
                moved = new + path[len(old) :]
                self._numbers[moved] = self._numbers.pop(path)
                self._paths[self._numbers[moved][0]] = moved


class FileSystem:
    def __init__(self, folder: pathlib.Path):
        """Opens the folder that the file system will show, so that its files stay accessible after the mount over the
        folder."""
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._root = f"/proc/self/fd/{root}/"
        self._paths = Paths()
        self._device = -1
        self._strangers = not kernel.names_every_user()
        self._numbers = 0
        self._lock = threading.Lock()
        self._rules: tuple[FileRule, ...] = ()
        self._lists: dict[int, list[tuple[int, str, int]]] = {}
        self._handlers: dict[int, Callable[[FuseRequest], bytes]] = {
            code: getattr(self, f"_{code.name.lower()}") for code in Code if hasattr(self, f"_{code.name.lower()}")
        }

    def mount(self, folder: pathlib.Path, pid: int = 0) -> None:
        """Mounts the file system in the mount namespace of process `pid`, or of this process if `pid` is 0. Raises
        `OSError` if the kernel refuses the mount."""
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        owner = f"user_id={os.geteuid()},group_id={os.getegid()}"
        options = f"fd={self._device},rootmode=40000,{owner},allow_other,default_permissions"
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        if pid:
            kernel.mount_for(pid, "chaos", str(folder), "fuse.chaos", flags, options)
        else:
            kernel.mount("chaos", str(folder), "fuse.chaos", flags, options)

    def serve(self) -> None:
        """Starts to answer the kernel's requests. Before this call, any access to the mounted folder blocks."""
        for number in range(READERS):
            threading.Thread(target=self._serve, name=f"reader-{number}", daemon=True).start()

    # Rules

    def add(self, rule: dict[str, Any], pid: int | None) -> int:
        spec = StorageRule(**rule | {"operations": tuple(rule["operations"])})
        with self._lock:
            self._numbers += 1
            self._rules = (*self._rules, FileRule(self._numbers, spec, pid))
            return self._numbers

    def remove(self, number: int) -> None:
        """Ends the storage fault with this number; a second call does nothing. After a simulated power failure, file
        operations work again, but data that was not durable stays lost. Raises `OSError` if a file operation still
        waits because of the fault."""
        with self._lock:
            ended = [rule for rule in self._rules if rule.number == number]
            self._rules = tuple(rule for rule in self._rules if rule.number != number)
        for rule in ended:
            rule.end()
            deadline = time.monotonic() + FREE_S_MAX
            while rule.holds() and (left := rule.told()["unanswered"]):
                if time.monotonic() > deadline:
                    raise OSError(errno.EBUSY, f"{left} operations still wait for a rule that has ended")
                time.sleep(DYING_LOOK_S)

    def clear(self) -> None:
        for rule in self._rules:
            self.remove(rule.number)

    def counts(self, number: int) -> dict[str, int]:
        for rule in self._rules:
            if rule.number == number:
                return rule.told()
        raise UsageError(f"unknown storage rule {number}")

    def try_out(self, rule: dict[str, Any], pid: int | None) -> dict[str, int]:
        """Returns the delay and the errors that active storage faults equal to `rule` would cause on the node of
        process `pid` (`None`: on any node). The check changes no file and no counter."""
        spec = StorageRule(**rule | {"operations": tuple(rule["operations"])})
        alike = [each for each in self._rules if each.spec == spec and (pid is None or each.covers(pid))]
        met = [[each.would(operation) for each in alike] for operation in spec.operations]
        delay_s = max((delay for found in met for delay, _ in found), default=0.0)
        refused = sum(any(refuses for _, refuses in found) for found in met)
        return {"tried": len(met), "refused": refused, "delay_ns": round(delay_s * 1e9)}

    def _move(self, old: str, new: str) -> None:
        os.rename(self._root + old, self._root + new)
        self._paths.move(old, new)

    # Requests

    def _serve(self) -> None:
        buffer = bytearray(wire.BUFFER_BYTES)
        try:
            while (request := wire.read_request(self._device, buffer)) is not None:
                self._take(request)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # without one of its readers it would answer some and hang others

    def _take(self, request: FuseRequest) -> None:
        if request.code not in _SILENT:
            verdict = self._judge(request) if self._rules else None
            if verdict is None or not (verdict.delay_s or verdict.hold or verdict.hang):
                self._answer(request, verdict)
            else:
                threading.Thread(target=self._wait_and_answer, args=(request.kept(), verdict), daemon=True).start()

    def _judge(self, request: FuseRequest) -> Verdict | None:
        operation = _OPERATIONS.get(request.code)  # type: ignore[call-overload]
        if operation is None:
            return None
        rules = [rule for rule in self._rules if rule.covers(request.pid)]
        paths = self._concerned(request) if rules else ()
        size = wire.TRANSFER_IN.unpack_from(request.body)[2] if operation in ("read", "write") else 0
        verdict = Verdict(size=size)
        for rule in rules:
            rule.judge(operation, paths, size, verdict)
        return verdict

    def _concerned(self, request: FuseRequest) -> tuple[str, ...]:
        if request.code in (Code.RENAME, Code.RENAME2):
            return self._rename_paths(request)
        if request.code in _NAMES:
            return (self._paths.child(request.node, request.names(_NAMES[request.code])[0]),)  # type: ignore[index]
        return (self._paths.of(request.node),)

    def _wait_and_answer(self, request: FuseRequest, verdict: Verdict) -> None:
        if verdict.hold:
            if verdict.allowed:
                with contextlib.suppress(OSError):  # nobody will be told: the power is off
                    self._perform(request, verdict)
            for rule in verdict.rules:
                if rule.off:
                    rule.lose(self._move)
        with contextlib.ExitStack() as waits:
            for rule in verdict.rules:
                waits.enter_context(rule.waiting(request.unique, request.pid, verdict.size))
            dies = self._wait(request, verdict)
        if dies or verdict.hold:
            wire.reply(self._device, request.unique, error=errno.EINTR if dies else errno.EIO)
        else:
            self._answer(request, verdict)

    def _wait(self, request: FuseRequest, verdict: Verdict) -> bool:
        """Keeps a file operation waiting until its delay is over, the simulated power is back, or the fault has ended.
        Returns True if the calling process is being killed, because the kernel lets a process die only after its
        request is answered."""
        until = time.monotonic() + verdict.delay_s
        while not is_dying(request.pid):
            held = any(rule.holds() and rule in self._rules for rule in verdict.rules)
            left = DYING_LOOK_S if held else until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, DYING_LOOK_S))
        return True

    def _answer(self, request: FuseRequest, verdict: Verdict | None) -> None:
        try:
            if verdict is not None and verdict.error:
                raise OSError(verdict.error, os.strerror(verdict.error))
            body = self._perform(request, verdict)
        except OSError as error:
            wire.reply(self._device, request.unique, error=error.errno or errno.EIO)
        else:
            wire.reply(self._device, request.unique, body)

    def _perform(self, request: FuseRequest, verdict: Verdict | None) -> bytes:
        handler = self._handlers.get(request.code)
        if handler is None:
            raise OSError(errno.ENOSYS, "not offered")
        if verdict is not None and verdict.allowed is not None:
            return self._write_part(request, verdict.allowed)
        return handler(request)

    # What the kernel asks for, one method a code

    def _init(self, request: FuseRequest) -> bytes:
        """Makes waiting file operations uninterruptible, as with a slow disk: the waiting threads are in state D until
        SIGKILL."""
        wire.refuse_interrupts(self._device, request.unique)
        _, _, readahead, flags = wire.INIT_IN.unpack_from(request.body)
        pages = wire.WRITE_BYTES_MAX // 4096
        return wire.INIT_OUT.pack(
            wire.MAJOR, wire.MINOR, readahead, flags & wire.FLAGS, 64, 48, wire.WRITE_BYTES_MAX, 1, pages, 0, 0
        )

    def _real(self, path: str) -> str:
        return self._root + path

    def _entry(self, path: str) -> bytes:
        found = os.lstat(self._real(path))
        return wire.ENTRY.pack(self._paths.number(path, found.st_ino), 0, 0, 0, 0, 0) + self._shown(found)

    def _shown(self, found: os.stat_result) -> bytes:
        """Returns a file's attributes for the kernel. An owner or group without an id in this user namespace is
        replaced by this process's user or group, because the kernel would otherwise refuse writes."""
        uid = os.geteuid() if self._strangers and found.st_uid == NO_ID else found.st_uid
        gid = os.getegid() if self._strangers and found.st_gid == NO_ID else found.st_gid
        return wire.pack_attributes(found, uid, gid)

    def _named(self, request: FuseRequest, start: int = 0) -> str:
        return self._paths.child(request.node, request.names(start)[0])

    def _lookup(self, request: FuseRequest) -> bytes:
        return self._entry(self._named(request))

    def _getattr(self, request: FuseRequest) -> bytes:
        flags, _, handle = wire.GETATTR_IN.unpack_from(request.body)
        return self._attributes(request.node, handle if flags & wire.GETATTR_HANDLE else None)

    def _attributes(self, node: int, handle: int | None) -> bytes:
        found = os.fstat(handle) if handle is not None else os.lstat(self._real(self._paths.of(node)))
        return wire.ATTRIBUTES_VALID.pack(0, 0, 0) + self._shown(found)

    def _setattr(self, request: FuseRequest) -> bytes:
        values = wire.SETATTR_IN.unpack_from(request.body)
        valid, _, handle, size = values[:4]
        times, nanoseconds, mode, uid, gid = values[5:7], values[8:10], values[11], values[13], values[14]
        open_handle = handle if valid & wire.SET_HANDLE else None
        path = self._real(self._paths.of(request.node))
        if valid & wire.SET_MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & (wire.SET_UID | wire.SET_GID):
            os.chown(
                path, uid if valid & wire.SET_UID else -1, gid if valid & wire.SET_GID else -1, follow_symlinks=False
            )
        if valid & wire.SET_SIZE:
            os.truncate(open_handle if open_handle is not None else path, size)
        if valid & (wire.SET_ATIME | wire.SET_MTIME):
            now = time.time_ns()
            given = [
                now if valid & now_bit else seconds * 10**9 + rest
                for now_bit, seconds, rest in zip((wire.SET_ATIME_NOW, wire.SET_MTIME_NOW), times, nanoseconds)
            ]
            os.utime(path, ns=(given[0], given[1]), follow_symlinks=False)
        return self._attributes(request.node, open_handle)

    def _readlink(self, request: FuseRequest) -> bytes:
        return os.fsencode(os.readlink(self._real(self._paths.of(request.node))))

    def _symlink(self, request: FuseRequest) -> bytes:
        name, target = request.names(0)
        path = self._paths.child(request.node, name)
        os.symlink(target, self._real(path))
        return self._entry(path)

    def _link(self, request: FuseRequest) -> bytes:
        (old,) = wire.HANDLE_IN.unpack_from(request.body)
        path = self._named(request, wire.HANDLE_IN.size)
        os.link(self._real(self._paths.of(old)), self._real(path), follow_symlinks=False)
        return self._entry(path)

    def _mknod(self, request: FuseRequest) -> bytes:
        mode, device, _, _ = wire.MKNOD_IN.unpack_from(request.body)
        path = self._named(request, wire.MKNOD_IN.size)
        os.mknod(self._real(path), mode, device)
        return self._entry(path)

    def _mkdir(self, request: FuseRequest) -> bytes:
        mode, _ = wire.MKDIR_IN.unpack_from(request.body)
        path = self._named(request, wire.MKDIR_IN.size)
        os.mkdir(self._real(path), mode)
        return self._entry(path)

    def _unlink(self, request: FuseRequest) -> bytes:
        path = self._named(request)
        remove = os.rmdir if request.code == Code.RMDIR else os.unlink
        remove(self._real(path))
        self._paths.forget(path)
        return b""

    _rmdir = _unlink

    def _rename_paths(self, request: FuseRequest) -> tuple[str, str]:
        layout = wire.RENAME_IN if request.code == Code.RENAME else wire.RENAME2_IN
        old, new = request.names(layout.size)
        return self._paths.child(request.node, old), self._paths.child(layout.unpack_from(request.body)[0], new)

    def _rename(self, request: FuseRequest) -> bytes:
        old, new = self._rename_paths(request)
        self._move(old, new)
        for rule in self._rules:
            if rule.covers(request.pid):
                rule.note_rename(old, new)
        return b""

    def _rename2(self, request: FuseRequest) -> bytes:
        if wire.RENAME2_IN.unpack_from(request.body)[1]:
            raise OSError(errno.EINVAL, "exchanging names is not offered")
        return self._rename(request)

    def _open(self, request: FuseRequest) -> bytes:
        flags, _ = wire.OPEN_IN.unpack_from(request.body)
        handle = os.open(self._real(self._paths.of(request.node)), flags & ~os.O_NOFOLLOW | os.O_CLOEXEC)
        return wire.OPEN_OUT.pack(handle, 0, 0)

    def _create(self, request: FuseRequest) -> bytes:
        flags, mode, _, _ = wire.CREATE_IN.unpack_from(request.body)
        path = self._named(request, wire.CREATE_IN.size)
        handle = os.open(self._real(path), flags | os.O_CREAT | os.O_CLOEXEC, mode)
        return self._entry(path) + wire.OPEN_OUT.pack(handle, 0, 0)

    def _read(self, request: FuseRequest) -> bytes:
        handle, offset, size, *_ = wire.TRANSFER_IN.unpack_from(request.body)
        return os.pread(handle, size, offset)

    def _write(self, request: FuseRequest) -> bytes:
        return self._write_part(request, wire.TRANSFER_IN.unpack_from(request.body)[2])

    def _write_part(self, request: FuseRequest, allowed: int) -> bytes:
        handle, offset, *_ = wire.TRANSFER_IN.unpack_from(request.body)
        data = request.body[wire.TRANSFER_IN.size :][:allowed]
        written = os.pwrite(handle, data, offset) if allowed else 0
        for rule in self._rules:
            if rule.spec.power and rule.covers(request.pid):
                rule.note_write((self._paths.of(request.node),), handle, offset, written)
        return wire.WRITE_OUT.pack(written, 0)

    def _statfs(self, request: FuseRequest) -> bytes:
        found = os.statvfs(self._root)
        full = any(rule.errno == errno.ENOSPC and rule.covers(request.pid) for rule in self._rules)
        free, available = (0, 0) if full else (found.f_bfree, found.f_bavail)
        sizes = found.f_bsize, found.f_namemax, found.f_frsize
        return wire.STATFS_OUT.pack(found.f_blocks, free, available, found.f_files, found.f_ffree, *sizes, 0)

    def _release(self, request: FuseRequest) -> bytes:
        os.close(wire.HANDLE_IN.unpack_from(request.body)[0])
        return b""

    def _fsync(self, request: FuseRequest) -> bytes:
        (handle,) = wire.HANDLE_IN.unpack_from(request.body)
        os.fsync(handle)
        for rule in self._rules:
            if rule.covers(request.pid):
                rule.note_fsync(handle)
        return b""

    def _fsyncdir(self, request: FuseRequest) -> bytes:
        descriptor = os.open(self._real(self._paths.of(request.node)), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return b""

    def _fallocate(self, request: FuseRequest) -> bytes:
        handle, offset, size, mode, _ = wire.FALLOCATE_IN.unpack_from(request.body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "holes are not offered")
        os.posix_fallocate(handle, offset, size)
        return b""

    def _opendir(self, request: FuseRequest) -> bytes:
        with os.scandir(self._real(self._paths.of(request.node))) as found:
            entries = [(entry.inode(), entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in found]
        with self._lock:
            self._numbers += 1
            handle = self._numbers
        self._lists[handle] = entries
        return wire.OPEN_OUT.pack(handle, 0, 0)

    def _readdir(self, request: FuseRequest) -> bytes:
        handle, offset, size, *_ = wire.TRANSFER_IN.unpack_from(request.body)
        return wire.pack_entries(self._lists[handle], offset, size)

    def _releasedir(self, request: FuseRequest) -> bytes:
        self._lists.pop(wire.HANDLE_IN.unpack_from(request.body)[0], None)
        return b""

    def _destroy(self, request: FuseRequest) -> bytes:
        return b""


def is_dying(pid: int) -> bool:
    """Returns True if SIGKILL was sent to the thread with this id, or if the thread is gone."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    pending = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(mask & SIGKILL_BIT for mask in pending)


def main(
    link: socket.socket,
    folder: str,
    pid: int = 0,
    become: Callable[[], None] = lambda: None,
    make: Callable[[pathlib.Path], FileSystem] = FileSystem,
) -> None:
    """Mounts the file system over `folder`, reports success over `link`, then answers calls until the caller is gone.
    If `pid` is given, mounts the file system in the mount namespace of this process. After the mount, calls `become` to
    give up privileges. The function `make` creates the file system."""
    system = start(link, folder, pid, become, make)
    if system is not None:
        answer(link, system)


def start(
    link: socket.socket,
    folder: str,
    pid: int = 0,
    become: Callable[[], None] = lambda: None,
    make: Callable[[pathlib.Path], FileSystem] = FileSystem,
) -> FileSystem | None:
    """Mounts a file system over a folder, and reports success or the error over `link`. Returns `None` after an
    error."""
    kernel.set_name("lab-storage")
    os.umask(0)
    path = pathlib.Path(folder)
    try:
        system = make(path)
        system.mount(path, pid)
        become()
        system.serve()
    except OSError as error:
        rpc.send(link, {"id": 0, "error": rpc.error_to_message(rpc.StageError("fuse", error.errno or 0, str(error)))})
        return None
    rpc.send(link, {"id": 0, "result": True})
    return system


def wait_ready(link: socket.socket) -> None:
    """Waits until the process at the other end has mounted its file system. Raises `StageError` if the mount failed."""
    link.settimeout(READY_S_MAX)
    rpc.result(rpc.receive(link))
    link.settimeout(None)


def answer(link: socket.socket, system: FileSystem) -> None:
    calls: dict[str, Callable[..., object]] = {"add": system.add, "remove": system.remove, "counts": system.counts}
    calls["try_out"] = system.try_out
    try:
        while True:
            message = rpc.receive(link)
            try:
                told: rpc.Message = {"result": calls[message["call"]](**message["params"])}
            except (OSError, UsageError, TypeError) as error:
                told = {"error": rpc.error_to_message(error)}
            rpc.send(link, {"id": message["id"]} | told)
    except OSError as error:
        print(f"lab-storage: {error}", file=sys.stderr, flush=True)
