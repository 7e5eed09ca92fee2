"""Defines the remote calls that disturb a node's storage. For each disturbed folder, a file system process delays or
refuses file operations.

`CALLS` maps the name of each remote call, such as `storage.add`, to its function.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
import socket
from collections.abc import Callable
from typing import Any

from harness.errors import BackendError, UsageError
from harness.node import kernel, owner_names, rpc, spawn
from harness.node.compat import TIMEOUTS
from harness.node.fuse import fuse_filesystem, recording
from harness.node.lab import Call, Lab

_NOT_READY: tuple[type[Exception], ...] = (*TIMEOUTS, ConnectionError)


async def mount(lab: Lab, folder: str, record: str = "") -> None:
    """Mounts the harness's file system over a folder, for all nodes that start later. If `record` is given, every
    change of a file by a node is recorded in the folder `record`. Raises `StageError` if the kernel refuses the
    mount."""
    if folder in lab.storage:
        raise UsageError(f"{folder}: is disturbed already")
    ours, theirs = socket.socketpair()
    make: Callable[[pathlib.Path], fuse_filesystem.FileSystem] = fuse_filesystem.FileSystem
    if record:
        make = functools.partial(recording.RecordingFileSystem, record=pathlib.Path(record))
    with theirs:
        pid = spawn.fork(lambda: fuse_filesystem.main(theirs, folder, make=make), keep=(theirs.fileno(),))
    lab.on_exit(pid, lambda code: lab.note(f"the file system over {folder} ended with {code}"))
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        ready = await asyncio.wait_for(rpc.receive_async(reader), fuse_filesystem.READY_S_MAX)
    except _NOT_READY as error:
        raise BackendError(f"the file system over {folder} did not come up; see labd.log") from error
    rpc.result(ready)
    lab.storage[folder] = rpc.AsyncClient(reader, writer, lambda _: None)
    lab.recorded += [folder] if record else []


async def hand_on(call: str, lab: Lab, folder: str, **params: Any) -> Any:
    system = lab.storage.get(folder)
    if system is None:
        raise UsageError(f"{folder}: cannot be disturbed; the workload's mounts are: {', '.join(lab.storage)}")
    return await system.call(call, **params)


async def _hand_on_rule(call: str, lab: Lab, folder: str, node: str, rule: dict[str, Any]) -> Any:
    return await hand_on(call, lab, folder, rule=rule, pid=lab.living(node).init_pid)


def why_no_device() -> str:
    """Returns the reason why this process cannot serve a FUSE file system, or an empty text if it can."""
    if not pathlib.Path("/dev/fuse").exists():
        return "/dev/fuse is missing: load the module fuse; in a container, add the device"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not open to this user: root, or chmod 666 /dev/fuse"
    return ""


async def examine(lab: Lab) -> str:
    """Tries to mount a file system that disturbs file operations. Returns the reason for a failure, or an empty
    text."""
    if reason := why_no_device():
        return reason
    with owner_names.temporary_folder() as place:
        folder = str(place)
        try:
            await mount(lab, folder)
            written = await asyncio.to_thread(_try, folder)
        except BackendError as error:
            return f"the kernel refuses a file system of ours ({error})"
        finally:
            if os.path.ismount(folder):
                kernel.unmount(folder)
            lab.storage.pop(folder, None)
    return "" if written else "a file system of ours does not work here"


def _try(folder: str) -> bool:
    file = pathlib.Path(folder) / "probe"
    file.write_bytes(b"probe")
    found = file.read_bytes()
    file.unlink()
    return found == b"probe"


CALLS: dict[str, Call] = {
    "storage.mount": mount,
    "storage.add": functools.partial(_hand_on_rule, "add"),
    "storage.remove": functools.partial(hand_on, "remove"),
    "storage.counts": functools.partial(hand_on, "counts"),
    "storage.try_out": functools.partial(_hand_on_rule, "try_out"),
    "storage.examine": examine,
}
