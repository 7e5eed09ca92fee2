"""Defines the state of labd, the daemon that runs a machine's virtual nodes."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from harness.errors import BackendError, NodeGone
from harness.node import rpc
from harness.node.limits import Limits
from harness.node.net import packet_rules
from harness.node.net.packet_rules import Hook, PacketRule, Where
from harness.node.spawn import Children

Call = Callable[..., Awaitable[Any]]  # takes the lab first; its result must be JSON


class Host(Protocol):
    name: str
    address: str
    init_pid: int
    gone: asyncio.Event
    limits: Limits

    @property
    def key(self) -> str: ...

    async def call(self, method: str, **params: Any) -> Any: ...


class Wired(Protocol):
    """A virtual node with a network device of its own. `hooks` are the kernel hooks that the node's packets pass."""

    lab: Lab
    address: str
    device: str
    hooks: Mapping[Where, Hook]
    gone: asyncio.Event

    @property
    def key(self) -> str: ...


_disturbances = itertools.count(1)  # their numbers, and so those of queues, filters and tables


class Disturbance(abc.ABC):
    """A disturbance of one node's network, which lasts until `end` is called."""

    what: str  # in messages

    def __init__(self, lab: Lab, host: Wired, traffic: Mapping[str, Any] = MappingProxyType({})):
        self.lab, self.host, self.traffic = lab, host, traffic
        self.number = next(_disturbances)
        self.undo = contextlib.AsyncExitStack()

    async def begin(self) -> None:
        """Begins the network disturbance completely or not at all. Raises `OSError` if the kernel refuses the
        disturbance."""
        try:
            await self._act()
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        await self.undo.aclose()

    @abc.abstractmethod
    async def _act(self) -> None:
        """Begins the disturbance step by step, and pushes the undo function of each step on `undo`."""

    async def counts(self) -> dict[str, int]:
        return {}

    def counter(self, source: str) -> str | None:
        """Returns the network device that counts the disturbed packets from the node `source`, or `None` if no device
        counts them."""
        return None

    def _add_table(self, rules: list[PacketRule]) -> None:
        name = f"chaos{self.number}"
        packet_rules.add_table(name, rules)
        self.undo.callback(packet_rules.delete_table, name)


class Lab(Children):
    """All virtual nodes of a run. `hosts` maps the key `<name>.<incarnation>` to the node, also for dead nodes."""

    def __init__(self, run_id: str, namespaces: bool, control_address: str, addresses: Iterator[str]):
        super().__init__()
        self.run_id = run_id
        self.namespaces = namespaces
        self.control_address = control_address
        self.hosts: dict[str, Host] = {}
        self.disturbances: dict[int, Disturbance] = {}  # active ones of the network
        self.classifiers: dict[str, list[int]] = {}  # device → disturbances that need its packets sorted
        self.unplugged: set[str] = set()
        self.storage: dict[str, rpc.AsyncClient] = {}  # folder → the file system over it
        self.recorded: list[str] = []  # those folders whose changes are recorded
        self.control: tuple[int, asyncio.Event] | None = None  # of the control command: process id, and its end
        self.kernel_limits = False  # whether nodes get control groups
        self.writer: asyncio.StreamWriter | None = None
        self._addresses = addresses
        self._tasks: set[asyncio.Task[None]] = set()

    def living(self, node: str) -> Host:
        """Returns the virtual node with this key. Raises `NodeGone` if the node is unknown or dead."""
        host = self.hosts.get(node)
        if host is None or host.gone.is_set():
            raise NodeGone(f"node {node} is gone")
        return host

    def next_address(self) -> str:
        address = next(self._addresses, None)
        if address is None:
            raise BackendError("this lab has no address left for another node")
        return address

    def send(self, message: rpc.Message) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(rpc.pack(message))

    def tell(self, event: str, **fields: Any) -> None:
        self.send({"event": event} | fields)

    def note(self, text: str) -> None:
        print(f"{time.time():.3f} {text}", file=sys.stderr, flush=True)

    def spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in a background task. Keeps a reference to the task, because the event loop could drop the
        task."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
