"""Finds the control groups (cgroup v1 and v2) of a process and their mount points. Uses only the standard library."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    version: int
    point: pathlib.Path
    root: str  # the group mounted there: not the topmost one in a container
    options: frozenset[str]

    def locate(self, group: str) -> pathlib.Path:
        """Returns the folder of a control group, or the mount point if the group is outside of the mounted
        hierarchy."""
        inside = group.removeprefix(self.root.rstrip("/")) if group.startswith(self.root.rstrip("/")) else "/"
        path = self.point / inside.strip("/")
        return path if path.is_dir() else self.point


def mounts(path: pathlib.Path) -> Iterator[Mount]:
    for line in path.read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) >= 5 and kind and kind[0] in ("cgroup", "cgroup2"):
            point = pathlib.Path(fields[4].encode().decode("unicode_escape"))
            version = 2 if kind[0] == "cgroup2" else 1
            yield Mount(version, point, fields[3], frozenset(kind[-1].split(",")))


def of_process(path: pathlib.Path) -> dict[str, str]:
    """Returns the control groups in a file /proc/<pid>/cgroup, by controller. The empty key stands for the cgroup v2
    group."""
    groups: dict[str, str] = {}
    for line in path.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), group)
    return groups
