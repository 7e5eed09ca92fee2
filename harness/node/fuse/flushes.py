"""Detects `sync` and `syncfs` calls of a node's processes, which the kernel does not report to FUSE file systems.

A seccomp filter pauses each `sync` or `syncfs` call, until the harness has looked up the file name `MARK` in each
recorded folder. The harness's file system records the look-up of `MARK` as a flush of the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence

MARK = ".chaos-flushed"  # no file has this name

_SET_FILTER, _NEW_LISTENER, _CONTINUE = 1, 1 << 3, 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctl numbers
_NOTICE = struct.Struct("=QIIiIQ6Q")  # id process flags call architecture address arguments
_ANSWER = struct.Struct("=QqiI")  # id value error flags
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
# Machine → its number in a filter, and those of the calls sync, syncfs and seccomp.
_NUMBERS = {"x86_64": (0xC000003E, 162, 306, 317), "aarch64": (0xC00000B7, 81, 267, 277)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


class Flushes:
    """Detects `sync` calls of this process and its later children. The process itself must not call `sync`."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Installs the seccomp filter. Raises `OSError` if the kernel refuses the filter."""
        if platform.machine() not in _NUMBERS:
            raise OSError(errno.ENOSYS, f"sync cannot be watched on {platform.machine()}")
        self._folders = folders
        machine, sync, self._syncfs, seccomp = _NUMBERS[platform.machine()]
        # Each step: operation, steps to skip if equal, steps to skip if not, operand.
        steps = [
            *((_LOAD, 0, 0, 4), (_EQUAL, 0, 4, machine), (_LOAD, 0, 0, 0)),
            *((_EQUAL, 1, 0, sync), (_EQUAL, 0, 1, self._syncfs), (_RETURN, 0, 0, _NOTIFY), (_RETURN, 0, 0, _ALLOW)),
        ]
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
        program = _Program(len(steps), ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        self.listener = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, ctypes.byref(program))
        if self.listener < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"sync cannot be watched: {os.strerror(number)}")

    def take(self) -> None:
        """Makes the file systems record one `sync` call, then lets the call continue. Call `take` when `listener` is
        readable."""
        notice = bytearray(_NOTICE.size)
        with contextlib.suppress(FileNotFoundError):  # the process was killed meanwhile
            fcntl.ioctl(self.listener, _RECEIVE, notice)
            identity, process, _, call, _, _, descriptor, *_ = _NOTICE.unpack(notice)
            self._mark(f"/proc/{process}/fd/{descriptor & 0xFFFFFFFF}" if call == self._syncfs else "")
            fcntl.ioctl(self.listener, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))

    def _mark(self, path: str) -> None:
        with contextlib.suppress(OSError):  # no such descriptor: the call itself fails, too
            device = os.stat(path).st_dev if path else None
            for folder in self._folders:
                if device in (None, os.stat(folder).st_dev):
                    os.path.lexists(f"{folder}/{MARK}")
