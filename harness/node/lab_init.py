"""Runs the init process of a virtual node, which sets up the node like the init process of a container.

With namespaces, the init process is process 1 of the virtual node, and the node dies with the init process. Without
namespaces, the init process is the subreaper of all processes of the virtual node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.node import kernel, kernel_errors, processes, rpc, run_folder_view, server, spawn
from harness.node.emitter import groups
from harness.node.fuse.flushes import Flushes
from harness.node.limits import Limits
from harness.node.net import net_connections, net_links, netlink
from harness.node.node_init import Init

GROUPS = "/sys/fs/cgroup"
SHARED_MEMORY = "/dev/shm"
NOTHING_SPECIAL = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
FREEZE_ROUNDS_MAX = 50
FREEZE_S_MAX = 5.0
LOOK_FOR_NEW_S = 0.5


@dataclass(frozen=True)
class Setup:
    name: str
    address: str
    control: str
    hosts: str  # the text of the node's /etc/hosts
    metadata: tuple[str, int]  # address of its metadata endpoint
    namespaces: bool
    run_dir: str  # empty: none
    writable: tuple[str, ...]  # the parts of it that the node may write
    recorded: tuple[str, ...] = ()  # folders whose changes are recorded


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Turns an `OSError` in the `with` block into a `StageError` that names the step `name` of a node's set-up."""
    try:
        yield
    except OSError as error:
        raise rpc.StageError(name, error.errno or 0, str(error)) from error


def main(link: socket.socket) -> None:
    """Sets up a virtual node as a message on `link` says, sends back a network socket of the node, and answers calls
    until `link` closes."""
    link.settimeout(30.0)
    message = rpc.receive(link)
    setup = Setup(**message["setup"] | {"metadata": tuple(message["setup"]["metadata"])})
    kernel.set_name(f"init-{setup.name}")
    try:
        if setup.namespaces:
            _build(setup)
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            os.setsid()
        with stage("metadata endpoint"), netlink.open_socket(net_connections.SOCK_DIAG) as diagnosis:
            listener = socket.create_server(setup.metadata, backlog=64)
            with stage(kernel_errors.WATCH):
                watched = Flushes(setup.recorded) if setup.recorded else None
            socket.send_fds(link, [rpc.pack({"result": listener.getsockname()})], [diagnosis.fileno()])
    except (OSError, rpc.StageError) as error:
        rpc.send(link, {"error": rpc.error_to_message(error)})
        return
    asyncio.run((LabInit if setup.namespaces else PlainInit)(setup.name, link, listener, watched).serve())


def _build(setup: Setup) -> None:
    with stage("node mounts"):
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", NOTHING_SPECIAL)
        _number_processes(setup)
        _mount_names(setup.hosts)
        if not os.path.realpath(setup.run_dir).startswith(f"{SHARED_MEMORY}/"):
            _mount_shared_memory()
        _mount_sysfs()
        if setup.run_dir:
            run_folder_view.restrict(setup.run_dir, setup.writable)
    with stage("node network"):
        socket.sethostname(setup.name)
        net_links.quiet_stack("eth0")
        net_links.set_up("lo")
        net_links.add_address("lo", setup.metadata[0])
        net_links.add_address("eth0", setup.address)
        net_links.set_up("eth0")
        net_links.add_route("eth0", setup.control)
        net_links.add_route("eth0", None, gateway=setup.control)


def _number_processes(setup: Setup) -> None:
    """Starts process ids at a different number on each node, because nodes share /tmp, where file names contain process
    ids."""
    run, node = zlib.crc32(setup.run_dir.encode()), int.from_bytes(socket.inet_aton(setup.address)[2:])
    with contextlib.suppress(OSError):  # a kernel without CONFIG_CHECKPOINT_RESTORE
        pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(1024 + (run + 331 * node) % 30_011))


def _mount_names(hosts: str) -> None:
    kernel.mount("tmpfs", "/sys", "tmpfs", options="size=1m,mode=755")  # room for the names of 4096 nodes, twice
    # There is no name server: nothing listens here, so that a lookup of an unknown name fails at once.
    for name, text in (("hosts", hosts), ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")):
        pathlib.Path(f"/sys/{name}").write_text(text)
        if pathlib.Path(f"/etc/{name}").exists():
            kernel.mount(f"/sys/{name}", f"/etc/{name}", flags=kernel.MS_BIND)
    kernel.unmount("/sys")


def _mount_shared_memory() -> None:
    """Mounts a /dev/shm in which the node sees the host's data; data that the node writes vanishes with the node."""
    kernel.mount("tmpfs", "/sys", "tmpfs")
    for name in ("written", "work"):
        os.mkdir(f"/sys/{name}")
    os.chmod("/sys/written", 0o1777)
    try:
        options = f"lowerdir={SHARED_MEMORY},upperdir=/sys/written,workdir=/sys/work"
        kernel.mount("overlay", SHARED_MEMORY, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    except OSError as error:
        print(f"the node shares {SHARED_MEMORY} with its host: {error}", file=sys.stderr, flush=True)
    kernel.unmount("/sys")


def _name(name: str, address: str) -> None:
    """Writes a node's name and address into /etc/hosts. Changes /etc/hosts in place, because the file is a mount
    point."""
    with open("/etc/hosts", "r+", encoding="utf-8") as file:
        others = [line for line in file if line.split()[1:] != [name]]
        file.seek(0)
        file.write("".join([*others, f"{address} {name}\n"]))
        file.truncate()


def _mount_sysfs() -> None:
    """Mounts /sys. If a container forbids the mount of /sys, the node sees the host's devices."""
    outside = os.open(GROUPS, os.O_PATH | os.O_CLOEXEC) if os.path.isdir(GROUPS) else None
    try:
        kernel.mount("sysfs", "/sys", "sysfs", NOTHING_SPECIAL)
        if outside is not None:
            _show_groups(outside)
    except PermissionError as error:
        print(f"the node goes without a /sys of its own: {error}", file=sys.stderr, flush=True)
    finally:
        if outside is not None:
            os.close(outside)


def _show_groups(outside: int) -> None:
    """Shows control groups read-only, as in a container: a process may read its limits but not change them."""
    try:
        kernel.mount(f"/proc/self/fd/{outside}", GROUPS, flags=kernel.MS_BIND | kernel.MS_REC)
    except OSError as error:
        print(f"the node does not see its control groups: {error}", file=sys.stderr, flush=True)
        return
    points = {GROUPS, *(str(mount.point) for mount in groups.mounts(pathlib.Path("/proc/self/mountinfo")))}
    for point in sorted(each for each in points if each == GROUPS or each.startswith(f"{GROUPS}/")):
        with contextlib.suppress(OSError):  # hidden by another one, or not ours to change
            read_only = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
            kernel.mount("none", point, flags=read_only | NOTHING_SPECIAL)


class LabInit(Init):
    def __init__(self, name: str, link: socket.socket, listener: socket.socket, flushes: Flushes | None):
        super().__init__(name, [name])
        self._link, self._listener, self._flushes = link, listener, flushes
        self._tell = self._lab.send

    async def serve(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._lab.reap)
        if self._flushes is not None:
            asyncio.get_running_loop().add_reader(self._flushes.listener, self._flushes.take)
        await self._endpoint.serve(self._listener)
        reader, self._lab.writer = await asyncio.open_connection(sock=self._link)
        await server.answer_all(self.calls(), reader, self._tell)

    def calls(self) -> dict[str, Callable[..., Any]]:
        return super().calls() | {"freeze": self._freeze, "name": _name}

    def _start(self, command: Sequence[str], env: Mapping[str, str], log: str) -> int:
        return spawn.execute(command, env, log, run_folder_view.give_up_mounting)

    async def _freeze(self) -> None:
        self._signal(signal.SIGSTOP, None)
        deadline = time.monotonic() + FREEZE_S_MAX
        while moving := [each.pid for each in self._others() if each.state in "RS"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {moving} have not stopped within {FREEZE_S_MAX:g} s")
            await asyncio.sleep(0.001)


class PlainInit(LabInit):
    def __init__(self, name: str, link: socket.socket, listener: socket.socket, flushes: Flushes | None):
        super().__init__(name, link, listener, flushes)
        self._limits = Limits(self._lab, f"{name}.1", os.getpid(), lambda: [name])
        self._members: list[processes.ProcEntry] = []
        self._looked = 0.0

    async def serve(self) -> None:
        try:
            await super().serve()
        finally:
            processes.kill_until_gone(self._limits.members, 5.0)

    def _start(self, command: Sequence[str], env: Mapping[str, str], log: str) -> int:
        return spawn.execute(command, env, log)

    def _signal_all(self, signum: int) -> int:
        """Signals all processes of the node. For SIGSTOP and SIGKILL, repeats the search for processes until there is
        no new process."""
        told: set[tuple[int, int]] = set()
        rounds = FREEZE_ROUNDS_MAX if signum in (signal.SIGSTOP, signal.SIGKILL) else 1
        for _ in range(rounds):
            new = [each for each in self._others() if (each.pid, each.start) not in told]
            if not new:
                break
            told |= {(each.pid, each.start) for each in new if each.signal(signum)}
            time.sleep(0.001)
        return len(told)

    def _signal_in_turn(self, signum: int) -> None:
        """Sends a signal to the node's processes. Looks for new processes only every 0.5 s, because the search is
        slow."""
        if time.monotonic() - self._looked > LOOK_FOR_NEW_S:
            self._members, self._looked = self._others(), time.monotonic()
        for process in self._members:
            process.signal(signum)
