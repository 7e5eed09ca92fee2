"""Runs the init process of a Kubernetes pod, which the harness controls over an attach connection.

    pod_init node|control

The init process sends nothing before the harness calls `hello`, because earlier messages would be lost. Everything that
the node writes to its events, answers and logs is sent to the harness at once. The pod ends when the harness has been
silent for a minute, or when the connection to the harness ends. SIGTERM from the kubelet means that the node is
reclaimed: the init process passes SIGTERM on to all processes, and ends the pod once the command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.node import boot, kernel, node_init, server
from harness.node.checkpoint_copies import Copies, Vault
from harness.node.emitter import clock_id
from harness.node.follow import Follower
from harness.node.net import paths
from harness.node.node_paths import POD_RUN_DIR, SCRATCH, SHARED

SILENT_S_MAX = 60.0
LOOK_S = 0.1
TAKEN_BACK = 143  # of a command that left with 0 because of the notice: with 0 the engine would call the job done
CONTROL = "control"
_SIOCGIFADDR = 0x8915


class PodInit(node_init.Init):
    def __init__(self, role: str, root: pathlib.Path = pathlib.Path(POD_RUN_DIR)):
        super().__init__(role, [role])
        self._role, self._root = role, root
        self._heard_s = time.monotonic()
        self._leaving = False
        name = CONTROL if role == CONTROL else f"node{index_here()}"
        self._follower = Follower(root, (f"events/{name}", f"answers/{name}", "logs"), server.tell)
        self._copies: Copies | None = None
        self._vault: Vault | None = None
        self._ends = paths.Ends()

    async def serve(self) -> None:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._reclaimed)
        loop.add_reader(self._follower.descriptor, self._follower.absorb)
        watching = asyncio.ensure_future(self._watch())
        listener = node_init.listen()
        await self._endpoint.serve(listener)
        self._metadata = "{}:{}".format(*listener.getsockname())
        calls = self.calls() | self._more_calls()
        await server.serve(calls, self._lab.reap, {})
        watching.cancel()

    def _more_calls(self) -> dict[str, Any]:
        return {
            "hello": self._hello,
            "beat": self._beat,
            "clock": lambda: {"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()},
            "configure": self._configure,
            "open_vault": self._open_vault,
            "put": self._put,
            "run": self._run_here,
            "die": self._die,
            "flush": self._follower.flush,
            "remove_shared": self._remove_shared,
            **self._ends.calls,
        }

    def _hello(self) -> dict[str, Any]:
        self._heard_s = time.monotonic()
        address = os.environ.get("POD_IP") or socket.gethostbyname(socket.gethostname())
        trainers = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        return {
            "role": self._role,
            "index": index_here() if self._role != CONTROL else -1,
            "address": address,
            "device": device_of(address),
            "host": socket.gethostname(),
            "clock": clock_id(),
            "metadata": self._metadata,
            "digest": boot.archive_digest(),
            "trainer": boot.trainer_digest(trainers),
        }

    def _beat(self) -> None:
        self._heard_s = time.monotonic()

    async def _watch(self) -> None:
        while time.monotonic() - self._heard_s < SILENT_S_MAX:
            await asyncio.sleep(LOOK_S)
        print(f"the harness has been silent for {SILENT_S_MAX:g} s", file=sys.stderr, flush=True)
        self._die(0)  # with any other code a job would bring it back for no use

    async def _configure(self, url: str, token: str, shared: str) -> None:
        """Links the checkpoint folder to `shared` on the volume, or else starts to copy checkpoints to and from a
        server."""
        checkpoints = self._root / "checkpoints"
        if shared:
            folder = pathlib.Path(SHARED) / shared
            folder.mkdir(parents=True, exist_ok=True)
            checkpoints.symlink_to(folder)
            return
        self._copies = Copies(checkpoints, url, token)
        await asyncio.to_thread(self._copies.start)

    def _open_vault(self, token: str) -> str:
        self._vault = self._vault or Vault(pathlib.Path(SCRATCH) / "vault", str(self._hello()["address"]), token)
        return self._vault.url

    def _remove_shared(self, shared: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(pathlib.Path(SHARED) / shared)

    def _put(self, name: str, data: str | None, append: bool = False) -> None:
        """Writes a file of the run in place, because a process may have mapped the file. Removes the file if `data` is
        `None`."""
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root.resolve()):
            raise UsageError(f"{name!r} is not below the run's folder")
        if data is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0)
        with os.fdopen(os.open(path, flags, 0o644), "wb", buffering=0) as file:
            content = data.encode("latin-1")
            file.write(content)
            if not append:
                file.truncate(len(content))

    def _run_here(self, command: Sequence[str], env: Mapping[str, str], name: str) -> int:
        (self._root / "holds").mkdir(exist_ok=True)
        return self._run(command, env, str(self._root / "logs" / f"{name}.log"))

    def _main_ended(self, code: int) -> None:
        self._follower.flush()
        super()._main_ended(code)
        if self._leaving:
            self._leave(code or TAKEN_BACK)

    def _reclaimed(self) -> None:
        self._leaving = True
        if self._main_pid:
            self._signal(signal.SIGTERM, None)
        else:
            self._leave(TAKEN_BACK)

    def _leave(self, code: int) -> None:
        self._follower.flush()
        if self._copies is not None:
            try:
                self._copies.push()
            except OSError as error:
                print(f"the last checkpoint is not at the vault: {error}", file=sys.stderr, flush=True)
        os._exit(code)

    def _die(self, code: int = 128 + signal.SIGKILL) -> None:
        self._send(signal.SIGKILL, None)
        os._exit(code)


def index_here() -> int:
    """Returns the pod's index in the job, from JOB_COMPLETION_INDEX or else RANK (in Kubeflow's PyTorchJob)."""
    return int(os.environ.get("JOB_COMPLETION_INDEX", os.environ.get("RANK", "-1")))


def device_of(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            wanted = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, wanted)[20:24]
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found) == address:
                return name
    return ""


if __name__ == "__main__":
    asyncio.run(PodInit(sys.argv[1]).serve())
