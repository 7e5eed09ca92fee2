"""Restricts a node's view of the run's folder: the node can read the whole folder, but write only its own part.

The run's folder is mounted over itself read-only, and the node's own part is mounted on top, writable. A process with
the right to mount could undo the restriction, so a node's commands are started without the right to mount.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.node import kernel

# What a mount was made with must be said again when it is changed: as statvfs(3) and mount(2) call it.
_KEPT = (
    (os.ST_NOSUID, kernel.MS_NOSUID),
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


KEPT = ".fault-free"  # beside the runs: the fault-free runs that are kept
_MARK = "undo.jsonl"  # in the folder of every run


def restrict(run_dir: str, writable: Sequence[str]) -> None:
    """Makes the run's folder read-only for this process and its children, except for the parts `writable`.

    `writable` names existing files and folders, relative to `run_dir`. Raises `OSError` if the kernel refuses a mount.
    """
    closed = [*around(run_dir), run_dir]
    for path in (*closed, *(f"{run_dir}/{name}" for name in writable)):
        kernel.mount(path, path, flags=kernel.MS_BIND | kernel.MS_REC)
    for path in closed:  # last: what is bound from a read-only mount would be read-only, too
        given = os.statvfs(path).f_flag
        kept = sum(flag for told, flag in _KEPT if given & told)
        kernel.mount("none", path, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def around(run_dir: str) -> list[str]:
    """Returns the parent folders of this run's folder that belong to the harness, the outermost first."""
    found: list[str] = []
    place = os.path.dirname(os.path.abspath(run_dir))
    while os.path.basename(place) == KEPT or os.path.lexists(f"{place}/{_MARK}"):
        found.insert(0, place)
        place = os.path.dirname(place)
    beside = f"{place}/{KEPT}"
    return found if beside in found or not os.path.isdir(beside) else [beside, *found]


def give_up_mounting() -> None:
    """Takes the right to change mounts from all programs that this process starts later, if it runs as root."""
    if os.geteuid() == 0:
        kernel.prctl(kernel.PR_CAPBSET_DROP, kernel.CAP_SYS_ADMIN)
