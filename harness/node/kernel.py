"""Makes Linux system calls that Python's standard library lacks. A failed call raises an `OSError` that names the
call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_RELATIME = 0x200000
MNT_DETACH = 0x2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
CAP_SYS_ADMIN = 21
CAP_SYS_TIME = 25

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_char_p)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def be_prompt() -> None:
    """Gives this process a larger share of the CPUs than others, because nodes may keep all CPUs busy. Needs root."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -19)


def be_punctual() -> None:
    """Makes this process run as soon as it has work, by real-time scheduling or, if forbidden, by a larger CPU
    share."""
    be_prompt()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def enter_network(pid: int) -> None:
    """Moves this thread to process `pid`'s network namespace. The thread's open sockets stay in the old namespace."""
    _enter(pid, "net", CLONE_NEWNET)


def _enter(pid: int, kind: str, flag: int) -> None:
    with open(f"/proc/{pid}/ns/{kind}", "rb") as file:
        _check(_libc.setns(file.fileno(), flag), f"enter the {kind} namespace of process {pid}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    kind_bytes = kind.encode() if kind else None
    result = _libc.mount(source.encode(), target.encode(), kind_bytes, flags, options.encode())
    _check(result, f"mount {kind or source} on {target}")


def mount_for(pid: int, source: str, target: str, kind: str, flags: int, options: str) -> None:
    """Mounts a file system in the mount namespace of process `pid`, by a child of the caller."""
    child = os.fork()
    if child == 0:
        code = errno.EIO
        try:
            _enter(pid, "mnt", CLONE_NEWNS)
            mount(source, target, kind, flags, options)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(abs(code), f"mount {kind} on {target} for process {pid}: {os.strerror(abs(code))}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def set_name(name: str) -> None:
    """Sets the process name that `ps -o comm` shows, cut to 15 bytes."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(PR_SET_NAME, ctypes.addressof(text), 0, 0, 0), "prctl name")


def map_user_namespace(uid: int, gid: int, inside: tuple[int, int] = (0, 0)) -> None:
    """Maps the ids `inside` (by default 0, root) of a new user namespace to the ids `uid` and `gid` outside of it."""
    # The kernel lets an ordinary user map a group only after giving up setgroups.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside[0]} {uid} 1"), ("gid_map", f"{inside[1]} {gid} 1")):
        pathlib.Path(f"/proc/self/{name}").write_text(text)


def enter_mount_namespace() -> None:
    """Gives this process and its later children a mount namespace of their own, whose mounts other processes do not
    see. A caller that is not root also enters a new user namespace, in which mounts are allowed, and keeps its user id.
    Later mounts in the original mount namespace are visible in the new mount namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        unshare(CLONE_NEWUSER)
        map_user_namespace(uid, gid, inside=(uid, gid))
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_SLAVE)


def names_every_user() -> bool:
    """Returns True if this user namespace maps every user and group id. Unmapped users would share a single id."""
    maps = (pathlib.Path(f"/proc/self/{name}").read_text().split() for name in ("uid_map", "gid_map"))
    return all(each == ["0", "0", str(2**32 - 1)] for each in maps)
