"""Files in folders that a node can write. Nothing there is followed, waited for, or read without a limit.

Whoever writes in a folder can swap any part of a path for a link at any moment. So a path is walked from a folder
that is ours, one name at a time, and each name is opened without following it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from harness.errors import FaultError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _below(path: str) -> str:
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not below the run's folder; write it relative to that folder, without '..'")
    return path


RunPath = Annotated[str, AfterValidator(_below)]
"""A path relative to the run's folder that does not leave it."""


@contextlib.contextmanager
def folder_of(root: pathlib.Path, path: str) -> Iterator[tuple[int, str]]:
    """The open folder that holds `root/path`, and the last name of the path.

    Raises `FaultError` where a part of the path is a link or no folder, `FileNotFoundError` where it is not there.
    """
    *parents, name = [part for part in _below(path).split("/") if part not in ("", ".")]
    descriptor = os.open(root, _FOLDER)
    try:
        for parent in parents:
            inner = _open_folder(descriptor, parent, root / path)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    finally:
        os.close(descriptor)


def _open_folder(descriptor: int, name: str, path: pathlib.Path) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FaultError(f"{path}: {name} is no plain folder ({error.strerror}); it is left alone") from error


def move_inside(root: pathlib.Path, source: str, target: str) -> None:
    """Renames `root/source` to `root/target`, which is replaced. Raises as `folder_of` does."""
    with folder_of(root, source) as (here, name), folder_of(root, target) as (there, new):
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FaultError(f"{root / source}: neither a regular file nor a link; it is left alone")
        os.replace(name, new, src_dir_fd=here, dst_dir_fd=there)
