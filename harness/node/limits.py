"""Limits a node's share of the machine's CPUs and memory, and starts processes that compete for them."""

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
from collections.abc import Callable, Collection

from harness.errors import CannotRunError, UsageError
from harness.node import boot, burner, cgroups, processes, spawn
from harness.node.spawn import Children
from harness.node.types import MemoryUse

KILLED_NEXT, KILLED_FIRST = 500, 1000  # OOM scores; only raised, as lowering one takes a capability of its own
WATCH_S = 0.01
LOOK_FOR_NEW_S = 0.1
FILL_S_MAX = 20.0
STEP_BYTES = 2**20
_PAGE_BYTES = mmap.PAGESIZE
_PROGRESS = struct.Struct("q")


class Limits:
    """The CPU and memory limits of a node, made before the node's first process so that control groups count all
    processes."""

    def __init__(
        self,
        children: Children,
        node: str,
        init_pid: int,
        names: Callable[[], Collection[str]],
        accounted_for: str | None = None,
    ):
        """`names` returns the names of all nodes on this machine. `accounted_for` is the run's id, or `None` if control
        groups cannot be used."""
        self.node = node
        self._children, self._names = children, names
        self._init_pid = init_pid
        self._groups: dict[str, cgroups.Group] = {}
        self._burners: dict[int, processes.ProcEntry] = {}
        self._load_file = -1
        self._affinity: dict[int, set[int]] = {}  # thread → its CPUs before it was crowded
        self._watchdog: asyncio.Task[None] | None = None
        self._watchdog_kills = 0
        self._fillers: list[int] = []
        self._sparing: set[int] = set()  # those of them that fill memory until somebody else dies
        self._looks = 0  # of the watchdog
        if accounted_for is not None:
            owner = os.environ[processes.OWNER_ENV]
            for controller in cgroups.CONTROLLERS:
                group = cgroups.create(controller, owner, accounted_for, node)
                if group is not None:
                    group.enter(init_pid)
                    self._groups[controller] = group

    def group(self, controller: str) -> cgroups.Group:
        if controller not in self._groups:
            reason = cgroups.why_not(controller) or "needs root"
            raise CannotRunError(f"node {self.node} has no `{controller}` cgroup: {reason}")
        return self._groups[controller]

    def end(self) -> None:
        self.unwatch_memory()
        self.uncrowd()

    def members(self) -> list[processes.ProcEntry]:
        return processes.descendants(self._init_pid)

    # CPU

    def limit_cpu(self, cpus: float | None) -> None:
        if cpus is not None and not cpus > 0:
            raise UsageError(f"a quota of {cpus} CPUs; it must be above 0")
        group = self.group("cpu")
        group.restore() if cpus is None else cgroups.limit_cpu(group, cpus)

    def throttled_by_quota_ns(self) -> int:
        return cgroups.throttled_ns(self._groups["cpu"]) if "cpu" in self._groups else 0

    def crowd(self, kind: str, load: float | None) -> None:
        if kind not in burner.KINDS:
            raise UsageError(f"unknown kind of load {kind!r}; choose one of: {', '.join(burner.KINDS)}")
        if load is None:
            return self.uncrowd()
        if self._load_file < 0:
            self._load_file = os.memfd_create("load")
            self._affinity = _confine(self.members(), self._own_cpus())
        os.pwrite(self._load_file, burner.LOAD.pack(load), 0)
        for number in range(len(self._burners), max(1, math.ceil(load))):
            self._start_burner(kind, number)

    def _start_burner(self, kind: str, number: int) -> None:
        cpus = self._own_cpus()

        def become() -> None:
            os.sched_setaffinity(0, cpus)
            os.set_inheritable(self._load_file, True)
            arguments = [kind, str(self._load_file), str(number)]
            module, packages = "harness.node.burner", kind == "gpu"
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

    def _own_cpus(self) -> set[int]:
        """Returns this node's part of the machine's CPUs, which are divided evenly among the nodes. If there are too
        few CPUs, nodes share a CPU."""
        cpus = sorted(os.sched_getaffinity(0))
        names = sorted(set(self._names()))
        place, count = names.index(self.node.rpartition(".")[0]), len(names)
        if count >= len(cpus):
            return {cpus[place % len(cpus)]}
        return set(cpus[place * len(cpus) // count : (place + 1) * len(cpus) // count])

    # Memory

    def memory_use(self) -> MemoryUse:
        if "memory" in self._groups:
            group = self._groups["memory"]
            return MemoryUse(cgroups.unreclaimable_bytes(group), cgroups.kills(group) + self._watchdog_kills)
        return MemoryUse(sum(_anonymous_bytes(each.pid) for each in self.members()), self._watchdog_kills)

    def limit_memory(self, limit_bytes: int | None, keeper: str) -> str:
        if limit_bytes is not None and limit_bytes <= 0:
            raise UsageError(f"a memory limit of {limit_bytes} bytes; it must be above 0")
        if limit_bytes is None:
            self.unwatch_memory()
            if "memory" in self._groups:
                self._groups["memory"].restore()
            return ""
        if keeper == "kernel" or (keeper == "auto" and "memory" in self._groups):
            cgroups.limit_memory(self.group("memory"), limit_bytes)
            return "kernel"
        self.unwatch_memory()
        self._watchdog = asyncio.ensure_future(self._watch(limit_bytes))
        return "watchdog"

    def unwatch_memory(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    async def _watch(self, limit_bytes: int) -> None:
        """Whenever the node uses more memory than the limit, kills the process with the highest OOM score. Among
        processes with equal scores, kills the one that uses the most memory."""
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
                    while self._sparing:  # who fills memory until somebody dies stops then, and takes no second one
                        await asyncio.sleep(WATCH_S)
            self._looks += 1
            await asyncio.sleep(WATCH_S)

    def _strangers(self) -> list[processes.ProcEntry]:
        found = (processes.read(pid) for pid in self._fillers)
        return [each for each in found if each is not None and each.running]

    async def fill_memory(self, size_bytes: int, spare: bool) -> int:
        progress = mmap.mmap(-1, _PROGRESS.size)
        start_read, start_write = os.pipe()
        score = KILLED_NEXT if spare else KILLED_FIRST
        pid = spawn.fork(lambda: _fill(size_bytes, progress, start_read, score), keep=(start_read,))
        os.close(start_read)
        done = asyncio.Event()
        self._children.on_exit(pid, lambda _: done.set())
        self._fillers.append(pid)
        if spare:
            self._sparing.add(pid)
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
            self._sparing.discard(pid)
        return _got(progress)

    async def _filled(self, done: asyncio.Event, kills_before: int, spare: bool, full: Callable[[], bool]) -> None:
        deadline = time.monotonic() + FILL_S_MAX
        while not done.is_set() and not full() and time.monotonic() < deadline:
            if spare and self.memory_use().kills > kills_before:
                return
            await asyncio.sleep(0.002)
        looks = self._looks
        while self._watchdog is not None and self._looks < looks + 3 and not done.is_set():
            if spare and self.memory_use().kills > kills_before:
                return
            await asyncio.sleep(0.002)


def _got(progress: mmap.mmap) -> int:
    return int(_PROGRESS.unpack(progress[:])[0])


def _fill(size_bytes: int, progress: mmap.mmap, start: int, oom_score: int) -> None:
    pathlib.Path("/proc/self/oom_score_adj").write_text(str(oom_score))
    os.read(start, 1)
    memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory is not anonymous
    for offset in range(0, size_bytes, _PAGE_BYTES):
        memory[offset] = 1
        progress[:] = _PROGRESS.pack(offset + _PAGE_BYTES)
        if offset % STEP_BYTES == 0:
            time.sleep(0.0005)  # slow enough for a watchdog that looks every 10 ms
    os.read(start, 1)  # holds it until it is killed


def _threads(members: list[processes.ProcEntry]) -> list[int]:
    found = []
    for process in members:
        tasks = pathlib.Path(f"/proc/{process.pid}/task")
        try:
            found += [int(entry.name) for entry in tasks.iterdir()]
        except OSError:
            continue  # it has ended
    return found


def _confine(members: list[processes.ProcEntry], cpus: set[int]) -> dict[int, set[int]]:
    before = {}
    for thread in _threads(members):
        try:
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            continue
    return before


def _release(members: list[processes.ProcEntry], before: dict[int, set[int]]) -> None:
    """Lets each thread run on the same CPUs as in `before`. Threads that `before` does not list get the largest of the
    CPU sets in `before`."""
    if not before:
        return
    usual = max(before.values(), key=len)
    for thread in _threads(members):
        try:
            os.sched_setaffinity(thread, before.get(thread, usual))
        except ProcessLookupError:
            continue


def _anonymous_bytes(pid: int) -> int:
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
