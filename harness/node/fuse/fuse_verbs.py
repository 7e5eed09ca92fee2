"""Storage that can be disturbed, as labd sees it: one file system process a folder, and rules for it.

`CALLS` are the calls this module answers; each takes the lab first.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
from typing import Any

from harness.errors import BackendError, NodeGone, UsageError
from harness.node import kernel, owner_names, rpc, spawn
from harness.node.compat import TIMEOUTS
from harness.node.fuse import fuse_filesystem
from harness.node.lab import Call, Lab

_NOT_READY: tuple[type[Exception], ...] = (*TIMEOUTS, ConnectionError)


async def mount(lab: Lab, folder: str) -> None:
    """From now on new nodes see `folder` through a file system of ours. Raises `StageError` where that is refused."""
    if folder in lab.storage:
        raise UsageError(f"{folder}: is disturbed already")
    ours, theirs = socket.socketpair()
    with theirs:
        pid = spawn.fork(lambda: fuse_filesystem.main(theirs, folder), keep=(theirs.fileno(),))
    lab.on_exit(pid, lambda code: lab.note(f"the file system over {folder} ended with {code}"))
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        ready = await asyncio.wait_for(rpc.receive_async(reader), fuse_filesystem.READY_S_MAX)
    except _NOT_READY as error:
        raise BackendError(f"the file system over {folder} did not come up; see labd.log") from error
    if "error" in ready:
        raise rpc.to_error(ready["error"])
    lab.storage[folder] = rpc.AsyncClient(reader, writer, lambda _: None)


async def add(lab: Lab, folder: str, node: str, rule: dict[str, Any]) -> int:
    host = lab.hosts.get(node)
    if host is None or host.gone.is_set():
        raise NodeGone(f"node {node} is gone")
    number: int = await _system(lab, folder).call("add", rule=rule, pid=host.init_pid)
    return number


async def remove(lab: Lab, folder: str, number: int) -> None:
    await _system(lab, folder).call("remove", number=number)


async def counts(lab: Lab, folder: str, number: int) -> dict[str, int]:
    found: dict[str, int] = await _system(lab, folder).call("counts", number=number)
    return found


async def try_out(lab: Lab, folder: str, node: str, rule: dict[str, Any]) -> dict[str, int]:
    host = lab.hosts.get(node)
    if host is None or host.gone.is_set():
        raise NodeGone(f"node {node} is gone")
    found: dict[str, int] = await _system(lab, folder).call("try_out", rule=rule, pid=host.init_pid)
    return found


def why_no_device() -> str:
    """Why this process cannot serve a file system; empty if it can."""
    if not pathlib.Path("/dev/fuse").exists():
        return "/dev/fuse is missing: load the module fuse; in a container, add the device"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not open to this user: root, or chmod 666 /dev/fuse"
    return ""


async def examine(lab: Lab) -> str:
    """Why no folder can be disturbed here; empty if one can. Leaves nothing."""
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


def _system(lab: Lab, folder: str) -> rpc.AsyncClient:
    system = lab.storage.get(folder)
    if system is None:
        raise UsageError(f"{folder}: cannot be disturbed; the workload's mounts are: {', '.join(lab.storage)}")
    return system


CALLS: dict[str, Call] = {
    "storage.mount": mount,
    "storage.add": add,
    "storage.remove": remove,
    "storage.counts": counts,
    "storage.try_out": try_out,
    "storage.examine": examine,
}
