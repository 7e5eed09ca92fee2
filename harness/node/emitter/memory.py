"""Reads this process's memory use, and the memory limits of its control group and machine. Uses only the standard
library."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from harness.node.emitter import groups

SELF = pathlib.Path("/proc/self")
UNLIMITED = 2**60  # bytes; version 1 of control groups names a number above it for no limit


class Room(NamedTuple):
    """A memory limit, and the memory used by all processes to which the limit applies, in bytes."""

    used: int
    limit: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


def resident_bytes() -> int:
    return int((SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def room() -> Room | None:
    """Returns the memory limit that leaves this process the fewest free bytes, or `None` if no limit can be read."""
    return min([*_groups(), *_machine()], key=lambda each: each.free, default=None)


def _machine() -> Iterator[Room]:
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        table = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        yield Room(table["MemTotal"] - table["MemAvailable"], table["MemTotal"])
    except (OSError, ValueError, KeyError, IndexError):
        return


def _groups() -> Iterator[Room]:
    try:
        own = groups.of_process(SELF / "cgroup")
        mounts = list(groups.mounts(SELF / "mountinfo"))
    except (OSError, ValueError):
        return
    for mount in mounts:
        if mount.version == 2:
            files, group = ("memory.max", "memory.current", "inactive_file"), own.get("")
        else:
            files, group = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), own.get("memory")
        if group is None or (mount.version == 1 and "memory" not in mount.options):
            continue
        path = mount.locate(group)
        for each in [path, *path.parents]:
            if found := _read(each, *files):
                yield found
            if each == mount.point:
                break


def _read(group: pathlib.Path, limit: str, usage: str, cache: str) -> Room | None:
    try:
        most = (group / limit).read_text().strip()
        if most == "max" or int(most) >= UNLIMITED:
            return None
        stat = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
        return Room(int((group / usage).read_text()) - int(stat.get(cache, 0)), int(most))
    except (OSError, ValueError):
        return None
