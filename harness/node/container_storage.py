"""Delays or refuses file operations of a container, by a file system that only this container sees.

For each folder whose file operations can be disturbed, a process on the container's host mounts a file system over the
folder, in the container's mount namespace. After the mount, the file system's process runs as the container's user, and
carries out the container's file operations or makes them fail. The file system's process ends with the harness, and the
mount ends with the container.

    python -m harness.node.container_storage LINK PID FOLDER UID GID
"""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import BackendError, UsageError
from harness.node import kernel, rpc
from harness.node.fuse import fuse_filesystem, fuse_verbs

CALL_S_MAX = 10.0
END_S_MAX = 5.0


def why_not(address: str, user: str) -> str:
    """Returns the reason why faults cannot disturb file operations of containers that run as `user` (uid:gid), or an
    empty text if they can. `address` is the address of the Docker daemon."""
    if not address.startswith("unix://"):
        return "the daemon is on another machine, and a file system can be mounted into a node only from its own host"
    if os.geteuid() != 0 or user.startswith("0:"):
        return "mounting a file system into a container takes root, and a daemon that runs as root"
    return fuse_verbs.why_no_device()


class Storage:
    def __init__(
        self, pid: int, folders: Sequence[pathlib.Path], user: str, marks: Mapping[str, str], log: pathlib.Path
    ):
        """Starts a process with a file system for each folder. `pid` is the process id, on the host, of the container's
        first process. `marks` are environment variables that identify processes of the harness. Raises `BackendError`
        if a file system cannot be mounted."""
        self._systems: dict[str, rpc.Line] = {}
        try:
            for folder in folders:
                self._systems[str(folder)] = _start([str(pid), str(folder), *user.split(":")], marks, log)
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        return not self._systems

    def call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        folder = params.pop("folder")
        if folder not in self._systems:
            raise UsageError(f"{folder}: cannot be disturbed; the workload's mounts are: {', '.join(self._systems)}")
        if params.pop("node", None):
            params["pid"] = None  # whatever comes this way comes from this node
        return self._systems[folder].call(method.removeprefix("storage."), limit_s, **params)

    def close(self) -> None:
        systems, self._systems = self._systems, {}
        for line in systems.values():
            line.close()


def _start(arguments: list[str], marks: Mapping[str, str], log: pathlib.Path) -> rpc.Line:
    ours, theirs = socket.socketpair()
    with theirs, log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.node.container_storage", str(theirs.fileno()), *arguments],
            env=os.environ | dict(marks),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the harness, which then ends this
            cwd=pathlib.Path(__file__).resolve().parents[2],
        )
    try:
        fuse_filesystem.wait_ready(ours)
    except OSError as error:
        process.kill()
        process.wait()
        ours.close()
        words = log.read_text(errors="replace").strip()[-300:]
        raise BackendError(f"the file system over {arguments[1]} did not come up: {error}. {words}") from error
    except BaseException:
        process.wait(END_S_MAX)
        ours.close()
        raise
    return rpc.Line(rpc.ChildStream(ours, process, END_S_MAX))


def _become(uid: int, gid: int) -> None:
    """Switches this process to the user `uid`, so that this user owns new files and the user's rights apply."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # the kernel takes /proc/self away from who has changed user


if __name__ == "__main__":
    link_number, pid_text, folder_text, uid_text, gid_text = sys.argv[1:]
    with socket.socket(fileno=int(link_number)) as link:
        fuse_filesystem.main(link, folder_text, int(pid_text), lambda: _become(int(uid_text), int(gid_text)))
