"""What a node sees of the run's folder: all of it to read, and only its own part to write.

The run's folder is bound over itself read-only, and what the node may write is bound over that. This is a view: who may
mount on the node can undo it, so commands of a node are started without that right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.backends.agent import kernel

# What a mount was made with must be said again when it is changed: as statvfs(3) and mount(2) call it.
_KEPT = (
    (os.ST_NOSUID, kernel.MS_NOSUID),
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


def restrict(run_dir: str, writable: Sequence[str]) -> None:
    """The caller, in a mount namespace of its own, and its children write nothing below `run_dir` but `writable`.

    These are files and folders relative to it, which must be there. Raises `OSError` where the kernel refuses.
    """
    kernel.mount(run_dir, run_dir, flags=kernel.MS_BIND | kernel.MS_REC)
    for name in writable:
        path = f"{run_dir}/{name}"
        kernel.mount(path, path, flags=kernel.MS_BIND | kernel.MS_REC)
    given = os.statvfs(run_dir).f_flag
    kept = sum(flag for told, flag in _KEPT if given & told)
    kernel.mount("none", run_dir, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def give_up_mounting() -> None:
    """What the caller executes next cannot change what is mounted. Nothing to do for who could not anyway."""
    if os.geteuid() == 0:
        kernel.prctl(kernel.PR_CAPBSET_DROP, kernel.CAP_SYS_ADMIN)
