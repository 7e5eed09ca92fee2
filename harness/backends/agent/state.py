"""What labd knows: its nodes, its children, and the one it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from harness.backends.agent import rpc
from harness.errors import BackendError

if TYPE_CHECKING:
    from harness.backends.agent.net.verbs import Disturbance
    from harness.backends.agent.node import Host


Call = Callable[..., Awaitable[Any]]  # takes the lab first; its result must be JSON


class Lab:
    """`hosts` maps `<name>.<incarnation>` to the node, dead ones included."""

    def __init__(self, run_id: str, namespaces: bool, control_address: str, addresses: Iterator[str]):
        self.run_id = run_id
        self.namespaces = namespaces
        self.control_address = control_address
        self.hosts: dict[str, Host] = {}
        self.disturbances: dict[int, Disturbance] = {}  # of the network, those that act
        self.classifiers: dict[str, list[int]] = {}  # device → disturbances that need its packets sorted
        self.unplugged: set[str] = set()
        self.storage: dict[str, rpc.AsyncClient] = {}  # folder → the file system over it
        self.control: tuple[int, asyncio.Event] | None = None  # of the control command: process id, and its end
        self.kernel_limits = False  # whether nodes get control groups
        self.writer: asyncio.StreamWriter | None = None
        self._addresses = addresses
        self._exits: dict[int, Callable[[int], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def next_address(self) -> str:
        """An address no node of this lab had before."""
        address = next(self._addresses, None)
        if address is None:
            raise BackendError("this lab has no address left for another node")
        return address

    def send(self, message: rpc.Message) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(rpc.pack(message))

    def tell(self, event: str, **fields: Any) -> None:
        """An event for the harness."""
        self.send({"event": event} | fields)

    def note(self, text: str) -> None:
        """A line in labd's log."""
        print(f"{time.time():.3f} {text}", file=sys.stderr, flush=True)

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Calls back with the exit code (negative: a signal) when the child has been reaped."""
        self._exits[pid] = callback

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # no child at all
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                callback = self._exits.pop(pid, None)
                if callback is not None:
                    callback(os.waitstatus_to_exitcode(status))

    def spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` beside the calls; kept referenced, or the loop could drop it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
