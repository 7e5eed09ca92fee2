"""Creates virtual nodes, starts commands on them, and signals and kills their processes.

`CALLS` maps the name of each remote call, such as `node.kill`, to its function.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from harness.errors import BackendError, NodeGone, UsageError
from harness.node import kernel, lab_init, processes, rpc, spawn
from harness.node.compat import TIMEOUTS
from harness.node.lab import Call, Lab
from harness.node.limits import Limits
from harness.node.net import net_connections, net_links, packet_rules
from harness.node.node_init import METADATA_ADDRESS

SETUP_S_MAX = 20.0
KILL_S_MAX = 15.0

View = tuple[str, tuple[str, ...]]  # the run's folder, and what of it the node may write


class LabNode(abc.ABC):
    def __init__(self, lab: Lab, name: str, incarnation: int, address: str, view: View):
        self.lab = lab
        self.view = view
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.init_pid = 0
        self.gone = asyncio.Event()
        self._client: rpc.AsyncClient
        self._held: list[socket.socket] = []
        self._main_running = False
        self.limits: Limits

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    async def create(self) -> list[Any]:
        """Starts a virtual node, and cleans up if the start fails. Returns host and port of the node's simulated cloud
        metadata server."""
        ours, theirs = socket.socketpair()
        try:
            with lab_init.stage("node processes"):
                self.init_pid = self._fork(theirs)
            theirs.close()
            self.limits = self._limits()
            self.lab.on_exit(self.init_pid, self._reaped)
            ours.settimeout(SETUP_S_MAX)
            where, *self._held = self._set_up(ours)
        except BaseException:
            ours.close()
            theirs.close()
            self.lab.hosts.pop(self.key, None)
            self._kill_init()
            raise
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        self._client = rpc.AsyncClient(reader, writer, self._on_event)
        return list(where)

    def _limits(self) -> Limits:
        def names() -> list[str]:
            return [host.name for host in self.lab.hosts.values()]

        accounted_for = self.lab.run_id if self.lab.kernel_limits else None
        return Limits(self.lab, self.key, self.init_pid, names, accounted_for)

    def _set_up(self, link: socket.socket) -> tuple[Any, ...]:
        self._connect()
        inside = self.lab.namespaces
        hosts, metadata = (_hosts_text(self.lab), METADATA_ADDRESS) if inside else ("", (self.address, 0))
        control = self.lab.control_address
        recorded = tuple(self.lab.recorded)
        setup = lab_init.Setup(self.name, self.address, control, hosts, metadata, inside, *self.view, recorded)
        rpc.send(link, {"setup": setup})
        # One small message: it arrives whole, together with the descriptor that rides on it.
        try:
            data, descriptors, _, _ = socket.recv_fds(link, 65536, 1)
        except TIMEOUTS as error:
            raise BackendError(f"node {self.name} was not ready within {SETUP_S_MAX:g} s") from error
        if not data:
            raise BackendError(f"the init of node {self.name} ended while it set the node up; see labd.log")
        return rpc.result(rpc.unpack(data)), *(socket.socket(fileno=descriptor) for descriptor in descriptors)

    def _kill_init(self) -> None:
        if self.init_pid:  # not reaped yet: the id is still this process's
            os.kill(self.init_pid, signal.SIGKILL)

    @abc.abstractmethod
    def _fork(self, link: socket.socket) -> int: ...

    def _connect(self) -> None:
        return None

    @abc.abstractmethod
    async def _kill(self) -> None: ...

    async def call(self, method: str, **params: Any) -> Any:
        if self.gone.is_set():
            raise NodeGone(f"node {self.key} is gone")
        try:
            return await self._client.call(method, **params)
        except ConnectionError as error:
            raise NodeGone(f"node {self.key} is gone") from error

    async def start(self, command: list[str], env: dict[str, str], log: str) -> None:
        if self._main_running:
            raise UsageError(f"node {self.key} runs its command already")
        self._main_running = True  # before the call: the command may end before its start is answered
        try:
            await self.call("run", command=command, env=env, log=log)
        except Exception:
            self._main_running = False
            raise
        self.lab.note(f"node {self.key} ({self.address}) runs {command}")

    async def kill(self) -> float:
        if self.gone.is_set():
            raise NodeGone(f"node {self.key} is gone")
        begin = time.monotonic()
        await self._kill()
        try:
            await asyncio.wait_for(self.gone.wait(), KILL_S_MAX)
        except TIMEOUTS as error:
            raise BackendError(f"node {self.key} is still there {KILL_S_MAX:g} s after SIGKILL") from error
        return time.monotonic() - begin

    def _on_event(self, event: rpc.Message) -> None:
        self._main_running = False
        self.lab.tell("exit", node=self.name, incarnation=self.incarnation, code=event["code"])

    def _reaped(self, _code: int) -> None:
        self.init_pid = 0
        self.limits.end()
        for held in self._held:  # a socket of the node's would hold its network namespace
            held.close()
        if hasattr(self, "_client"):
            self.lab.spawn_task(self._finish())

    async def _finish(self) -> None:
        await self._client.closed.wait()  # an exit reported in the last moment comes first
        if self._main_running:
            self._main_running = False
            self.lab.tell("exit", node=self.name, incarnation=self.incarnation, code=-signal.SIGKILL)
        self.lab.tell("gone", node=self.name, incarnation=self.incarnation)
        self.gone.set()


class NamespaceNode(LabNode):
    """A virtual node with PID, network, mount, UTS and IPC namespaces of its own, like a small host."""

    hooks = packet_rules.LAB_END

    def __init__(self, lab: Lab, name: str, incarnation: int, address: str, view: View):
        super().__init__(lab, name, incarnation, address, view)
        self.device = f"v{int(socket.inet_aton(address)[2]) * 256 + socket.inet_aton(address)[3]}"

    def _fork(self, link: socket.socket) -> int:
        read_end, write_end = os.pipe()
        helper = spawn.fork(lambda: _fork_init(link, write_end), keep=(link.fileno(), write_end))
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            report = pipe.read()
        os.waitpid(helper, 0)
        if not report:
            raise BackendError("a node's init could not be forked; see labd.log")
        return int(rpc.result(rpc.unpack(report)))

    def _connect(self) -> None:
        with lab_init.stage("veth"):
            net_links.add_veth(self.device, "eth0", self.init_pid)
            net_links.quiet_stack(self.device)
            net_links.set_up(self.device)
            net_links.add_route(self.device, self.address, source=self.lab.control_address)

    async def _kill(self) -> None:
        try:
            # Stopped first, so that no process of the node sees another one die, nor its connections.
            await self._client.call("signal", limit_s=1.0, signum=signal.SIGSTOP, pid=None)
            for diagnosis in self._held:
                net_connections.reset_all(diagnosis)
        except (OSError, BackendError) as error:
            self.lab.note(f"node {self.key} is killed without a reset of its connections: {error}")
        # The kernel ends every other process of the namespace before it lets us reap its init.
        self._kill_init()


def _hosts_text(lab: Lab) -> str:
    """Returns the text of a virtual node's /etc/hosts, which names all nodes of the run, so that no look-up waits for a
    name server. The name of a replaced node stands for the address of its newest replacement."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"{lab.control_address} control"]
    newest = {host.name: host.address for host in lab.hosts.values() if isinstance(host, LabNode)}
    lines += [f"{address} {name}" for name, address in newest.items()]
    lines.append(f"{METADATA_ADDRESS[0]} metadata.google.internal metadata")
    for each in (lab.control_address, *itertools.islice(net_links.addresses(), 250)):
        # Sockets that speak both protocols look their peers up in the mapped form.
        lines += [f"{each} host-{each.replace('.', '-')}", f"::ffff:{each} host-{each.replace('.', '-')}"]
    return "\n".join(lines) + "\n"


def _fork_init(link: socket.socket, report: int) -> None:
    """Starts a node's init process in new namespaces. Runs in a helper process, because `unshare` changes its caller's
    namespaces."""
    flags = kernel.CLONE_NEWNET | kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWPID
    try:
        with lab_init.stage("node namespaces"):
            kernel.unshare(flags)
            pid = spawn.fork(lambda: lab_init.main(link), keep=(link.fileno(),))
        os.write(report, rpc.pack({"result": pid}))
    except rpc.StageError as error:
        os.write(report, rpc.pack({"error": rpc.error_to_message(error)}))


class PlainNode(LabNode):
    """A virtual node without namespaces: the descendants of its init process, and all processes whose environment names
    the node."""

    def _fork(self, link: socket.socket) -> int:
        return spawn.fork(lambda: lab_init.main(link), keep=(link.fileno(),))

    async def _kill(self) -> None:
        marks = {
            processes.RUN_ENV: self.lab.run_id,
            "CHAOS_NODE": self.name,
            "CHAOS_INCARNATION": str(self.incarnation),
        }
        deadline = time.monotonic() + KILL_S_MAX
        while time.monotonic() < deadline:
            left = {*processes.descendants(self.init_pid), *processes.marked(**marks)}
            if not left:
                break
            for process in left:
                process.signal(signal.SIGKILL)
            await asyncio.sleep(0.002)
        self._kill_init()


def _host(lab: Lab, node: str) -> LabNode:
    host = lab.hosts.get(node)
    if not isinstance(host, LabNode):
        raise NodeGone(f"unknown node {node}")
    return host


async def create(
    lab: Lab, name: str, incarnation: int, run_dir: str = "", writable: Sequence[str] = ()
) -> dict[str, Any]:
    """Makes a virtual node. With namespaces, the node can only read `run_dir`, except for the parts in `writable`."""
    kind = NamespaceNode if lab.namespaces else PlainNode
    host = kind(lab, name, incarnation, lab.next_address(), (run_dir, tuple(writable)))
    if host.key in lab.hosts:
        raise UsageError(f"node {host.key} exists already")
    lab.hosts[host.key] = host
    where = await host.create()
    if lab.namespaces:
        # Every other node that is there learns where the newcomer's name leads to.
        for other in [each for each in lab.hosts.values() if isinstance(each, LabNode) and each is not host]:
            with contextlib.suppress(NodeGone):
                await other.call("name", name=host.name, address=host.address)
    return {"address": host.address, "metadata": where}


async def start(lab: Lab, node: str, command: list[str], env: dict[str, str], log: str) -> None:
    await _host(lab, node).start(command, env, log)


async def kill(lab: Lab, node: str) -> float:
    elapsed_s = await _host(lab, node).kill()
    lab.note(f"node {node} killed: everything dead after {elapsed_s * 1e3:.1f} ms")
    return elapsed_s


async def _hand_on(call: str, lab: Lab, node: str, **params: Any) -> Any:
    return await _host(lab, node).call(call, **params)


async def _limit(call: str, lab: Lab, node: str, **params: Any) -> Any:
    found = getattr(lab.living(node).limits, call)(**params)
    return await found if inspect.isawaitable(found) else found


async def cpu_use(lab: Lab, node: str) -> dict[str, Any]:
    use: dict[str, Any] = await _hand_on("cpu_use", lab, node)
    return use | {"throttled_ns": use["throttled_ns"] + lab.living(node).limits.throttled_by_quota_ns()}


_BY_INIT = (
    "signal",
    "pids",
    "states",
    "freeze",
    "notice",
    "notice_seen",
    "throttle",
    "doom",
    "watch_gpus",
    "gpus",
    "rdma",
)
_BY_LIMITS = ("limit_cpu", "crowd", "limit_memory", "memory_use", "fill_memory")
CALLS: dict[str, Call] = {
    "node.create": create,
    "node.start": start,
    "node.kill": kill,
    "node.cpu_use": cpu_use,
    **{f"node.{call}": functools.partial(_hand_on, call) for call in _BY_INIT},
    **{f"node.{call}": functools.partial(_limit, call) for call in _BY_LIMITS},
}
