"""Manages the control groups (cgroup v1 or v2) that measure and limit a node's use of CPU and memory.

Each control group is made when its node starts, so that it counts all CPU time and memory that the node uses. The name
of a control group is `chaos-<harness>@<run>@<node>`, where `<harness>` identifies the harness process that made the
group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import time
from dataclasses import dataclass, field

from harness.errors import BackendError, FaultError, each
from harness.node import processes
from harness.node.emitter import groups

CONTROLLERS = ("cpu", "memory")
PREFIX = "chaos-"
PERIOD_US = 50_000  # of a CPU quota; shorter than the kernel's 100 ms, as a training step often is
QUOTA_US_MIN = 1_000  # the kernel takes no less
REMOVED_S_MAX = 2.0
SELF = pathlib.Path("/proc/self")


@dataclass(frozen=True)
class Parent:
    """The control group below which new groups can be made: the caller's own group, or its nearest suitable
    ancestor."""

    controller: str
    version: int
    path: pathlib.Path


def find_parent(controller: str, proc: pathlib.Path | None = None) -> Parent | str:
    """Returns the control group below which this process can make new groups or, as a text, the reason why no group can
    be made."""
    proc = proc or SELF
    own = groups.of_process(proc / "cgroup")
    unified: Parent | str = f"no cgroup hierarchy with the controller `{controller}` is mounted"
    for mount in groups.mounts(proc / "mountinfo"):
        if mount.version == 1 and controller in mount.options:
            return Parent(controller, 1, mount.locate(own.get(controller, "/")))
        if mount.version == 2:
            unified = _delegated(controller, mount, own.get("", "/"))
    return unified


def _delegated(controller: str, mount: groups.Mount, own: str) -> Parent | str:
    path = mount.locate(own)
    while True:
        handed_down = ""
        with contextlib.suppress(OSError):
            handed_down = (path / "cgroup.subtree_control").read_text()
        if controller in handed_down.split():
            return Parent(controller, 2, path)
        if path == mount.point:
            return f"the cgroup v2 controller `{controller}` is not handed down to any group above this process"
        path = path.parent


def why_not(controller: str) -> str | None:
    """Returns the reason why no control group with the controller `controller` (such as `memory`) can be made, or
    `None` if one can be made."""
    parent = find_parent(controller)
    if isinstance(parent, str):
        return parent
    path = parent.path / f"{PREFIX}{processes.owner_text()}@probe@{os.getpid()}-{time.monotonic_ns()}"
    try:
        path.mkdir()
        path.rmdir()
    except OSError as error:
        return f"no cgroup can be made in {parent.path}: {error.strerror}; it takes root, or a delegated cgroup"
    return None


@dataclass
class Group:
    """A node's control group for CPU or memory. The method `restore` writes the original settings back in reverse
    order."""

    version: int
    path: pathlib.Path
    before: dict[str, str] = field(default_factory=dict)

    def enter(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def write(self, name: str, value: str) -> None:
        """Writes a setting of the control group, and remembers the original value for `restore`."""
        file = self.path / name
        self.before.setdefault(name, file.read_text().strip())
        file.write_text(value)

    def restore(self) -> None:
        for name in reversed(list(self.before)):
            (self.path / name).write_text(self.before[name])
            del self.before[name]

    def number(self, name: str) -> int:
        return int((self.path / name).read_text())

    def table(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in (self.path / name).read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def create(controller: str, owner: str, run_id: str, node: str) -> Group | None:
    parent = find_parent(controller)
    if isinstance(parent, str):
        return None
    path = parent.path / f"{PREFIX}{owner}@{run_id}@{node}"
    try:
        path.mkdir()
    except OSError:
        return None  # users of the group ask again, and are told why
    return Group(parent.version, path)


def limit_cpu(group: Group, cpus: float) -> None:
    quota_us = max(QUOTA_US_MIN, round(cpus * PERIOD_US))
    if group.version == 2:
        group.write("cpu.max", f"{quota_us} {PERIOD_US}")
        return
    group.write("cpu.cfs_period_us", str(PERIOD_US))
    group.write("cpu.cfs_quota_us", str(quota_us))


def throttled_ns(group: Group) -> int:
    """Returns the time in ns, summed over CPUs, for which the control group's CPU quota has stopped processes."""
    stat = group.table("cpu.stat")
    return stat["throttled_usec"] * 1000 if group.version == 2 else stat["throttled_time"]


_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    2: ("memory.max", "memory.swap.max"),
}


def limit_memory(group: Group, limit_bytes: int) -> None:
    """Limits a control group's memory; above the limit, the kernel kills a process instead of swapping. Raises
    `FaultError` if the group already uses more memory than `limit_bytes`, and the kernel cannot free the excess."""
    memory, swap = _MEMORY_FILES[group.version]
    try:
        group.write(memory, str(limit_bytes))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise FaultError(f"{limit_bytes} bytes: the node uses more that cannot be freed") from error
    if (group.path / swap).exists():
        group.write(swap, str(limit_bytes) if group.version == 1 else "0")


def unreclaimable_bytes(group: Group) -> int:
    """Returns the bytes of a control group's memory that are freed only when a process ends: anonymous, shared and
    kernel memory."""
    stat = group.table("memory.stat")
    if group.version == 2:
        return stat["anon"] + stat["shmem"] + stat.get("kernel", 0)
    return stat["total_rss"] + stat["total_shmem"] + group.number("memory.kmem.usage_in_bytes")


def kills(group: Group) -> int:
    return group.table("memory.events" if group.version == 2 else "memory.oom_control")["oom_kill"]


def leftovers(run_id: str | None = None) -> list[pathlib.Path]:
    """Returns the control groups that the run `run_id` has left behind or, if `run_id` is `None`, those that dead
    harness processes have left."""
    # Searched everywhere: the sweeping process may be in another group than the harness was.
    roots = {m.point for m in groups.mounts(SELF / "mountinfo") if m.version == 2 or m.options & set(CONTROLLERS)}
    # One that vanishes during the search is skipped: `os.walk` omits what it cannot list.
    below = {pathlib.Path(folder, name) for root in roots for folder, names, _ in os.walk(root) for name in names}
    ours = []
    for path in sorted(path for path in below if path.name.startswith(PREFIX) and path.name.count("@") >= 2):
        owner, run, _ = path.name.removeprefix(PREFIX).split("@", 2)
        if run == run_id if run_id is not None else processes.owner_is_dead(owner):
            ours.append(path)
    return ours


def sweep(run_id: str | None = None) -> int:
    """Removes the control groups that `leftovers` finds, and returns their number. Raises `BackendError` if a group is
    still in use, after an attempt to remove every group."""
    found = leftovers(run_id)
    deadline = time.monotonic() + REMOVED_S_MAX
    each(lambda path: _remove(path, deadline), found)
    return len(found)


def _remove(path: pathlib.Path, deadline: float) -> None:
    while True:
        try:
            with contextlib.suppress(FileNotFoundError):  # the reverter may be faster
                path.rmdir()
            return
        except OSError as error:
            # Processes that were just killed leave their group a moment later.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise BackendError(f"{path}: cannot be removed: {error.strerror}") from error
            time.sleep(0.005)
