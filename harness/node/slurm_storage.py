"""Disturbs file operations on a Slurm node, by a file system that only the job's task sees.

`slurm_task`, which starts a node's command, mounts the file system in a mount namespace of its own, so that the site's
mounts stay unchanged. The mounts end with the last process that sees them, at the latest with the job.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import os
import signal
import socket
import struct
import time
from collections.abc import Sequence

from harness.errors import BackendError
from harness.node import boot, kernel, kernel_errors, rpc, spawn
from harness.node.fuse import fuse_filesystem, fuse_verbs
from harness.node.lab import Lab

_RUN_KEY = "key"  # beside what was delivered, in the run's folder
_PEER = struct.Struct("3i")  # process, user and group


def mount(key: str, folders: Sequence[str]) -> None:
    """Mounts a file system that can be disturbed over each folder, for programs that this process starts later.

    The caller must be in a mount namespace of its own. Raises `OSError` or `StageError` if the kernel refuses a mount.
    """
    for folder in folders:
        ours, theirs = socket.socketpair()
        with ours, theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_address(key, folder))
            listener.listen()
            serving = functools.partial(_serve, theirs, listener, folder, os.getpid())
            spawn.fork(serving, keep=(theirs.fileno(), listener.fileno()))
            theirs.close()  # or its end would not be seen
            fuse_filesystem.wait_ready(ours)


def _serve(link: socket.socket, listener: socket.socket, folder: str, starter: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        return
    # Slurm tells every process of the job to end; the command then still wants to save.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    system = fuse_filesystem.start(link, folder)
    while system is not None:
        caller, _ = listener.accept()
        with caller:
            if _is_ours(caller):
                fuse_filesystem.answer(caller, system)
                system.clear()  # nobody is left who would heal it


def _is_ours(peer: socket.socket) -> bool:
    _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())


def _address(key: str, folder: str) -> str:
    """Returns a socket name that other users cannot guess, so that they cannot bind the name first. The socket has no
    file, because a file could outlive a task that is killed."""
    descriptor = os.open(f"{os.path.dirname(boot.place())}/{_RUN_KEY}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        secret = file.read(1024)
    return f"\0chaos-{hmac.new(secret, f'{key}:{folder}'.encode(), hashlib.sha256).hexdigest()}"


async def connect(key: str, folder: str) -> rpc.AsyncClient:
    """Connects to the harness's file system over `folder`. Raises `BackendError` if another user or no one answers in
    time."""
    deadline = time.monotonic() + fuse_filesystem.READY_S_MAX
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(_address(key, folder))
            if not _is_ours(writer.get_extra_info("socket")):
                writer.close()
                raise BackendError(f"{folder}: another user of {key} answers in the place of its file system")
            return rpc.AsyncClient(reader, writer, lambda _: None)
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise BackendError(f"{folder}: no file system of ours is over it on {key}") from error
            await asyncio.sleep(0.05)


async def examine(lab: Lab) -> str:
    """Returns why file operations cannot be disturbed here, or an empty text. Moves the caller to a mount namespace of
    its own."""
    try:
        kernel.enter_mount_namespace()
    except OSError as error:
        remedy = kernel_errors.explain("user namespace", error.errno or 0, "root" if os.geteuid() == 0 else "user")
        return f"a Slurm node refuses a task mounts of its own: {remedy}"
    return await fuse_verbs.examine(lab)
