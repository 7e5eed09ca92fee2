"""Names temporary folders and sockets after the process that made them, so that the remains of killed processes are
found."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator

from harness.node import processes

OVER_AFTER_S = 3600.0  # so long nothing lasts that is named so, wherever it was made
_NAME = re.compile(r"(?P<kind>[a-z]+)-(?P<since>\d{9,11})-(?P<boot>[0-9a-f]{8})-(?P<owner>\d+-\d+-\d+)-[0-9a-f]{8}")
_FOLDER = "chaos-tmp-"


def new_name(kind: str) -> str:
    """Returns a name `KIND-since-boot-owner-random`: `since` is the time, `boot` identifies this boot, `owner` this
    process."""
    return f"{kind}-{int(time.time())}-{_boot()}-{processes.owner_text()}-{secrets.token_hex(4)}"


def is_over(name: str, kind: str, by_age: bool = True) -> bool:
    """Returns True if a name is of `kind` and the process that made the name is known to be dead. With `by_age`, also
    returns True if the name is an hour old."""
    found = _NAME.fullmatch(name)
    if found is None or found["kind"] != kind:
        return False
    if found["boot"] == _boot() and processes.owner_is_dead(found["owner"]):
        return True
    return by_age and time.time() - int(found["since"]) > OVER_AFTER_S


@contextlib.contextmanager
def temporary_folder() -> Iterator[pathlib.Path]:
    """Yields an empty folder for this user only. At the end, removes the folder, or prints why it cannot."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"{_FOLDER}{new_name('folder')}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            print(f"{folder}: cannot be removed: {error}", file=sys.stderr, flush=True)


def sweep_folders(dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Removes this user's temporary folders that dead processes have left. Returns the names of the folders, and error
    messages."""
    found, problems = list[str](), list[str]()
    for entry in list(os.scandir(tempfile.gettempdir())):
        ours = entry.name.startswith(_FOLDER) and is_over(entry.name.removeprefix(_FOLDER), "folder", by_age=False)
        try:
            if ours and entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.geteuid():
                if not dry_run:
                    shutil.rmtree(entry.path)
                found.append(f"folder {entry.path}")
        except FileNotFoundError:
            continue  # somebody else sweeps, too
        except OSError as error:
            problems.append(f"{entry.path}: cannot be removed: {error}")
    return found, problems


def _boot() -> str:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
