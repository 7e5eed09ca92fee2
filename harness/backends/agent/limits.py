"""What labd does to a node's share of the machine: CPU, memory, and strangers that compete for them.

`CALLS` are the calls this module answers; each takes the lab first. What is set here dies with the lab; control
groups, the only thing that does not, are made when a node is made and removed when the lab has ended.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import os
import pathlib
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness.backends.agent import boot, burner, cgroups, processes, spawn
from harness.backends.agent.state import Call, Lab
from harness.backends.agent.types import CpuUse, MemoryUse
from harness.errors import CannotRunError, NodeGone, UsageError

KILLED_NEXT, KILLED_FIRST = 500, 1000  # OOM scores; only raised, as lowering one takes a capability of its own
WATCH_S = 0.01
LOOK_FOR_NEW_S = 0.1
FILL_S_MAX = 20.0
STEP_BYTES = 2**20
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = mmap.PAGESIZE
_PROGRESS = struct.Struct("q")


class Limits:
    """One node's limits. Made before anything runs on the node, so that its groups account for all of it."""

    def __init__(self, lab: Lab, node: str, init_pid: int):
        self.node = node
        self._init_pid = init_pid
        self._groups: dict[str, cgroups.Group] = {}
        self._burners: dict[int, processes.Process] = {}
        self._load_file = -1
        self._affinity: dict[int, set[int]] = {}  # thread → where it might run before it was crowded
        self._watchdog: asyncio.Task[None] | None = None
        self._watchdog_kills = 0
        self._fillers: list[int] = []
        self._looks = 0  # of the watchdog
        if lab.kernel_limits:
            self._enter_groups(lab)

    def _enter_groups(self, lab: Lab) -> None:
        owner = os.environ[processes.OWNER_ENV]
        for controller in cgroups.CONTROLLERS:
            group = cgroups.create(controller, owner, lab.run_id, self.node)
            if group is not None:
                group.enter(self._init_pid)
                self._groups[controller] = group

    def group(self, controller: str) -> cgroups.Group:
        if controller not in self._groups:
            reason = cgroups.why_not(controller) or "needs root"
            raise CannotRunError(f"node {self.node} has no `{controller}` cgroup: {reason}")
        return self._groups[controller]

    def end(self) -> None:
        """The node is gone: nothing that was there for it alone may stay."""
        self.unwatch_memory()
        self.uncrowd()

    def members(self) -> list[processes.Process]:
        """The node's processes, as labd numbers them; its init is not one of them."""
        return processes.descendants(self._init_pid)

    # CPU

    def throttled_by_quota_ns(self) -> int:
        return cgroups.throttled_ns(self._groups["cpu"]) if "cpu" in self._groups else 0

    def crowd(self, lab: Lab, kind: str, load: float) -> None:
        if self._load_file < 0:
            self._load_file = os.memfd_create("load")
            self._affinity = _confine(self.members(), _own_cpus(lab, self.node))
        os.pwrite(self._load_file, burner.LOAD.pack(load), 0)
        for number in range(len(self._burners), max(1, math.ceil(load))):
            self._start_burner(lab, kind, number)

    def _start_burner(self, lab: Lab, kind: str, number: int) -> None:
        cpus = _own_cpus(lab, self.node)

        def become() -> None:
            os.sched_setaffinity(0, cpus)
            os.set_inheritable(self._load_file, True)
            arguments = [kind, str(self._load_file), str(number)]
            module, packages = "harness.backends.agent.burner", kind == "gpu"
            os.execv(sys.executable, boot.command(sys.executable, boot.place(), module, arguments, packages))

        pid = spawn.fork(become, keep=(self._load_file,))
        if "cpu" in self._groups:
            self._groups["cpu"].enter(pid)  # it competes inside the node, not with the node as a whole
        found = processes.read(pid)
        assert found is not None, "a child that has not been reaped has an entry in /proc"
        self._burners[pid] = found

    def uncrowd(self) -> None:
        for stranger in self._burners.values():
            stranger.signal(signal.SIGKILL)
        self._burners.clear()
        if self._load_file >= 0:
            os.close(self._load_file)
            self._load_file = -1
        _release(self.members(), self._affinity)
        self._affinity = {}

    # Memory

    def memory_use(self) -> MemoryUse:
        if "memory" in self._groups:
            group = self._groups["memory"]
            return MemoryUse(cgroups.unreclaimable_bytes(group), cgroups.kills(group) + self._watchdog_kills)
        return MemoryUse(sum(_anonymous_bytes(each.pid) for each in self.members()), self._watchdog_kills)

    def limit_memory(self, limit_bytes: int, keeper: str) -> str:
        if keeper == "kernel" or (keeper == "auto" and "memory" in self._groups):
            cgroups.limit_memory(self.group("memory"), limit_bytes)
            return "kernel"
        self.unwatch_memory()
        self._watchdog = asyncio.ensure_future(self._watch(limit_bytes))
        return "watchdog"

    def lift_memory(self) -> str:
        self.unwatch_memory()
        if "memory" in self._groups:
            self._groups["memory"].restore()
        return ""

    def unwatch_memory(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    async def _watch(self, limit_bytes: int) -> None:
        """Kills like the kernel would: the highest score first, then the largest."""
        own, looked = self.members(), time.monotonic()
        while True:
            if time.monotonic() - looked > LOOK_FOR_NEW_S:
                own, looked = self.members(), time.monotonic()
            members = own + self._strangers()
            sizes = {each: _anonymous_bytes(each.pid) for each in members}
            if sum(sizes.values()) > limit_bytes:
                alive = (each for each in members if sizes[each])
                victim = max(alive, key=lambda each: (_oom_score(each.pid), sizes[each]), default=None)
                if victim is not None and victim.signal(signal.SIGKILL):
                    self._watchdog_kills += 1
                    await asyncio.sleep(WATCH_S)  # until its memory is free
            self._looks += 1
            await asyncio.sleep(WATCH_S)

    def _strangers(self) -> list[processes.Process]:
        found = (processes.read(pid) for pid in self._fillers)
        return [each for each in found if each is not None and each.running]

    async def fill(self, lab: Lab, size_bytes: int, spare: bool) -> int:
        """Takes memory in a child of labd that stands on the node's account; returns how much it got."""
        progress = mmap.mmap(-1, _PROGRESS.size)
        start_read, start_write = os.pipe()
        score = KILLED_NEXT if spare else KILLED_FIRST
        pid = spawn.fork(lambda: _fill(size_bytes, progress, start_read, score), keep=(start_read,))
        os.close(start_read)
        done = asyncio.Event()
        lab.on_exit(pid, lambda _: done.set())
        self._fillers.append(pid)
        try:
            if "memory" in self._groups:
                self._groups["memory"].enter(pid)
            before = self.memory_use().kills
            os.write(start_write, b"1")
            await self._filled(done, before, spare, lambda: _got(progress) >= size_bytes)
        finally:
            os.close(start_write)
            if not done.is_set():
                os.kill(pid, signal.SIGKILL)
                await done.wait()
            self._fillers.remove(pid)
        return _got(progress)

    async def _filled(self, done: asyncio.Event, kills_before: int, spare: bool, full: Callable[[], bool]) -> None:
        """Until it has all it wants and the watchdog, if there is one, has seen that; or until somebody died for it."""
        deadline = time.monotonic() + FILL_S_MAX
        while not done.is_set() and not full() and time.monotonic() < deadline:
            if spare and self.memory_use().kills > kills_before:
                return
            await asyncio.sleep(0.002)
        looks = self._looks
        while self._watchdog is not None and self._looks < looks + 3 and not done.is_set():
            await asyncio.sleep(0.002)


def _got(progress: mmap.mmap) -> int:
    return int(_PROGRESS.unpack(progress[:])[0])


def _fill(size_bytes: int, progress: mmap.mmap, start: int, oom_score: int) -> None:
    """The child: takes page after page and notes how far it got."""
    pathlib.Path("/proc/self/oom_score_adj").write_text(str(oom_score))
    os.read(start, 1)
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory is not anonymous
    for offset in range(0, size_bytes, _PAGE_BYTES):
        memory[offset] = 1
        progress[:] = _PROGRESS.pack(offset + _PAGE_BYTES)
        if offset % STEP_BYTES == 0:
            time.sleep(0.0005)  # slow enough for a watchdog that looks every 10 ms
    os.read(start, 1)  # holds it until it is killed


def _own_cpus(lab: Lab, node: str) -> set[int]:
    """The node's part of the machine's CPUs: dealt out by name, several nodes share one where there are too few."""
    cpus = sorted(os.sched_getaffinity(0))
    names = sorted({host.name for host in lab.hosts.values()})
    place, count = names.index(node.rpartition(".")[0]), len(names)
    if count >= len(cpus):
        return {cpus[place % len(cpus)]}
    return set(cpus[place * len(cpus) // count : (place + 1) * len(cpus) // count])


def _threads(members: list[processes.Process]) -> list[int]:
    found = []
    for process in members:
        tasks = pathlib.Path(f"/proc/{process.pid}/task")
        try:
            found += [int(entry.name) for entry in tasks.iterdir()]
        except OSError:
            continue  # it has ended
    return found


def _confine(members: list[processes.Process], cpus: set[int]) -> dict[int, set[int]]:
    """Lets the threads run on `cpus` only; returns where each might run before."""
    before = {}
    for thread in _threads(members):
        try:
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue
    return before


def _release(members: list[processes.Process], before: dict[int, set[int]]) -> None:
    """Threads that came meanwhile get what the others had."""
    if not before:
        return
    usual = max(before.values(), key=len)
    for thread in _threads(members):
        try:
            os.sched_setaffinity(thread, before.get(thread, usual))
        except ProcessLookupError:
            continue


def _anonymous_bytes(pid: int) -> int:
    """Resident memory that no file stands for. 0 for a process that has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def _oom_score(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text())
    except OSError:
        return 0


def _limits(lab: Lab, node: str) -> Limits:
    host = lab.hosts.get(node)
    if host is None or host.gone.is_set() or host.limits is None:
        raise NodeGone(f"node {node} is gone")
    return host.limits


async def limit_cpu(lab: Lab, node: str, cpus: float | None) -> None:
    if cpus is not None and not cpus > 0:
        raise UsageError(f"a quota of {cpus} CPUs; it must be above 0")
    group = _limits(lab, node).group("cpu")
    if cpus is None:
        group.restore()
    else:
        cgroups.limit_cpu(group, cpus)


async def throttle(lab: Lab, node: str, share: float | None) -> None:
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"a share of {share}; it must be above 0 and at most 1")
    _limits(lab, node)
    await lab.hosts[node].call("throttle", share=1.0 if share is None else share)


async def crowd(lab: Lab, node: str, kind: str, load: float | None) -> None:
    if kind not in burner.KINDS:
        raise UsageError(f"strangers of kind {kind!r}; there is {', '.join(burner.KINDS)}")
    if load is None:
        _limits(lab, node).uncrowd()
    else:
        _limits(lab, node).crowd(lab, kind, load)


async def cpu_use(lab: Lab, node: str) -> dict[str, Any]:
    limits = _limits(lab, node)
    stopped_ns: int = await lab.hosts[node].call("stopped_ns")
    used_ns = sum(process.cpu_ticks for process in limits.members()) * _TICK_NS
    return asdict(CpuUse(used_ns, stopped_ns + limits.throttled_by_quota_ns(), time.monotonic_ns()))


async def limit_memory(lab: Lab, node: str, limit_bytes: int | None, keeper: str) -> str:
    limits = _limits(lab, node)
    if limit_bytes is None:
        return limits.lift_memory()
    if limit_bytes <= 0:
        raise UsageError(f"a memory limit of {limit_bytes} bytes; it must be above 0")
    return limits.limit_memory(limit_bytes, keeper)


async def memory_use(lab: Lab, node: str) -> dict[str, Any]:
    return asdict(_limits(lab, node).memory_use())


async def fill_memory(lab: Lab, node: str, size_bytes: int, spare: bool) -> int:
    return await _limits(lab, node).fill(lab, size_bytes, spare)


async def doom(lab: Lab, node: str, pid: int) -> None:
    _limits(lab, node)
    await lab.hosts[node].call("doom", pid=pid)


async def states(lab: Lab, node: str) -> list[dict[str, Any]]:
    _limits(lab, node)
    found: list[dict[str, Any]] = await lab.hosts[node].call("states")
    return found


CALLS: dict[str, Call] = {
    "node.limit_cpu": limit_cpu,
    "node.throttle": throttle,
    "node.crowd": crowd,
    "node.cpu_use": cpu_use,
    "node.limit_memory": limit_memory,
    "node.memory_use": memory_use,
    "node.fill_memory": fill_memory,
    "node.doom": doom,
    "node.states": states,
}
