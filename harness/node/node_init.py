"""Runs the init process of a node: starts the node's command, signals and lists processes, and simulates cloud
metadata.

    init NAME NODE…

`NAME` is the node's name; `NODE…` are the names of all nodes that share the machine. When the init process ends, the
kernel ends every other process of the node. Processes of the node run as the same user as the init process, but
PR_SET_DUMPABLE keeps them from using the init process's connection to the harness.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.errors import UsageError
from harness.node import boot, gpu_watch, kernel, metadata, processes, rdma, server, spawn
from harness.node.lab import Lab
from harness.node.limits import Limits
from harness.node.throttle import DutyCycle
from harness.node.types import CpuUse, MemoryUse, ProcessState

METADATA_ADDRESS = ("169.254.169.254", 80)
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
# The kernel's own count of processes killed for lack of memory, in both versions of control groups.
OOM_COUNTS = (pathlib.Path("/sys/fs/cgroup/memory/memory.oom_control"), pathlib.Path("/sys/fs/cgroup/memory.events"))


class NodeLimits(Limits):
    def members(self) -> list[processes.ProcEntry]:
        strangers = {1, *self._burners, *self._fillers}
        return [each for each in processes.every() if each.running and each.pid not in strangers]


class Init:
    def __init__(self, name: str, nodes: Sequence[str]):
        self._endpoint = metadata.Endpoint(name)
        self._main_pid = 0
        self._lab = Lab("", True, "", iter(()))
        self._limits: Limits = NodeLimits(self._lab, f"{name}.1", os.getpid(), lambda: nodes)
        self._duty = DutyCycle(self._turn)
        self._gpus = gpu_watch.GpuWatch(self._lab)
        self._stopped: set[int | None] = set()  # on purpose; `None`: all of them
        self._turns: asyncio.Task[None] | None = None
        self._tell: server.Tell = server.tell
        self._kills_before = _kernel_kills()

    async def serve(self) -> None:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        # `docker stop` tells only process 1; a host that is reclaimed tells everything on it.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._signal, signal.SIGTERM, None)
        listener = listen()
        await self._endpoint.serve(listener)
        await server.serve(self.calls(), self._lab.reap, {"metadata": listener.getsockname()})

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "run": self._run,
            "signal": self._signal,
            "pids": self._pids,
            "states": self._states,
            "notice": self._endpoint.announce,
            "notice_seen": lambda: self._endpoint.seen,
            "throttle": self._throttle,
            "crowd": self._limits.crowd,
            "cpu_use": self._cpu_use,
            "watch_memory": functools.partial(self._limits.limit_memory, keeper="watchdog"),
            "memory_use": self._memory_use,
            "fill_memory": self._limits.fill_memory,
            "doom": self._doom,
            "clock": time.time_ns,
            "watch_gpus": self._gpus.watch,
            "gpus": self._gpus.newest,
            "rdma": rdma.look,
        }

    def _run(self, command: Sequence[str], env: Mapping[str, str], log: str) -> int:
        if self._main_pid:
            raise UsageError("the node runs its command already")
        self._main_pid = self._start(command, env, log)
        self._lab.on_exit(self._main_pid, self._main_ended)
        return self._main_pid

    def _start(self, command: Sequence[str], env: Mapping[str, str], log: str) -> int:
        return spawn.execute(command, boot.with_delivered({**os.environ, **env}, boot.place()), log)

    def _main_ended(self, code: int) -> None:
        self._main_pid = 0
        self._tell({"event": "exit", "code": code})

    # Processes

    def _others(self) -> list[processes.ProcEntry]:
        return sorted(self._limits.members(), key=lambda each: each.pid)

    def _pids(self) -> list[int]:
        return [process.pid for process in self._others()]

    def _states(self) -> list[ProcessState]:
        return [ProcessState(one.pid, one.state, one.cpu_ticks * TICK_NS, one.parent) for one in self._others()]

    def _signal(self, signum: int, pid: int | None) -> int:
        if signum == signal.SIGSTOP:
            self._stopped.add(pid)
        elif signum == signal.SIGCONT:
            self._stopped = set() if pid is None else self._stopped - {pid}
        return self._send(signum, pid)

    def _turn(self, signum: int) -> None:
        """Stops or continues all processes of the node, in order to slow the node down. Processes that a fault has
        stopped stay stopped."""
        if signum == signal.SIGCONT and None in self._stopped:
            return
        self._signal_in_turn(signum)
        for pid in self._stopped if signum == signal.SIGCONT else ():
            self._send(signal.SIGSTOP, pid)

    def _signal_in_turn(self, signum: int) -> None:
        self._signal_all(signum)

    def _send(self, signum: int, pid: int | None) -> int:
        if pid is None:
            return self._signal_all(signum)
        return sum(process.signal(signum) for process in self._others() if process.pid == pid)

    def _signal_all(self, signum: int) -> int:
        others = self._others()
        # Outside a PID namespace of our own, -1 would mean every process of the user.
        assert os.getpid() == 1, "only process 1 of a node may signal everything it sees"
        with contextlib.suppress(ProcessLookupError):  # nothing but this process is left
            os.kill(-1, signum)  # atomic: nothing can be forked in the middle
        return len(others)

    # The node's share of the machine

    def _throttle(self, share: float | None) -> None:
        if share is not None and not 0 < share <= 1:
            raise UsageError(f"a share of {share}; it must be above 0 and at most 1")
        self._duty.set_share(1.0 if share is None else share)
        if self._duty.active and self._turns is None:
            self._turns = asyncio.ensure_future(self._take_turns())

    async def _take_turns(self) -> None:
        while (pause_s := self._duty.tick()) is not None:
            await asyncio.sleep(pause_s)
        self._turns = None

    def _cpu_use(self) -> CpuUse:
        used_ns = sum(process.cpu_ticks for process in self._others()) * TICK_NS
        return CpuUse(used_ns, self._duty.stopped_ns, time.monotonic_ns())

    def _memory_use(self) -> MemoryUse:
        use = self._limits.memory_use()
        return MemoryUse(use.used_bytes, use.kills + _kernel_kills() - self._kills_before)

    def _doom(self, pid: int) -> None:
        if pid not in self._pids():
            raise UsageError(f"unknown process {pid} on this node")
        pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


def _kernel_kills() -> int:
    for path in OOM_COUNTS:
        with contextlib.suppress(OSError):
            table = dict(line.split() for line in path.read_text().splitlines())
            return int(table.get("oom_kill", 0))
    return 0


def listen() -> socket.socket:
    """Listens for metadata requests at the clouds' address 169.254.169.254 if possible, else on the loopback device."""
    try:
        return socket.create_server(METADATA_ADDRESS, backlog=64)
    except OSError:  # the network gave no such address, or the port needs a privilege
        return socket.create_server(("127.0.0.1", 0), backlog=64)


if __name__ == "__main__":
    serving: Callable[[], Any] = Init(sys.argv[1], sys.argv[2:]).serve
    asyncio.run(serving())
