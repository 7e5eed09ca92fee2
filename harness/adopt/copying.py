"""Copies the user's folder before a trial run of the training, so that the user's own files cannot change."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator

from harness.errors import UsageError
from harness.report.words import size
from harness.units import counted

BYTES_MAX = 2 * 2**30
FILES_MAX = 20_000
ENVIRONMENT = "pyvenv.cfg"


@contextlib.contextmanager
def working_in_copy(reports: pathlib.Path) -> Iterator[pathlib.Path]:
    """Copies the working directory into a new folder in `reports`, and runs the `with` block in the copy.

    Symbolic links become files in the copy, because a training would write through a link to the user's files. The copy
    lacks `.git`, the folder `reports`, special files such as sockets, and links that are broken or circular. A virtual
    environment is linked instead of copied. Raises `UsageError`, before anything is copied, if the working directory
    has too many files or bytes."""
    folder = pathlib.Path.cwd()
    files = _files(folder, reports.resolve())
    reports.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=reports, prefix=".first-look-") as made:
        copy = pathlib.Path(made).resolve() / folder.name
        copy.mkdir(exist_ok=True)  # of the root folder, which has no name
        for path in files:
            into = copy / path.relative_to(folder)
            if not path.is_dir():
                shutil.copy2(path, into)
            elif (path / ENVIRONMENT).exists():
                into.symlink_to(path)
            else:
                into.mkdir()
        with contextlib.chdir(copy):
            yield copy


def moved(word: str, folder: pathlib.Path, copy: pathlib.Path) -> str:
    """Returns an argument of the trainer's command, with paths into `folder` changed to paths into `copy`. Relative
    paths in the argument do not change."""
    return re.sub(rf"(?<![^=:,]){re.escape(str(folder))}(?=/|$)", lambda _: str(copy), word)


def original(path: str, copy: pathlib.Path, folder: pathlib.Path) -> str:
    """Converts a path in the copy of the user's folder to the path in the user's folder. A path outside of the copy
    does not change."""
    return str(folder / pathlib.Path(path).relative_to(copy)) if pathlib.Path(path).is_relative_to(copy) else path


def _files(folder: pathlib.Path, reports: pathlib.Path) -> list[pathlib.Path]:
    found: list[pathlib.Path] = []
    sizes: dict[pathlib.Path, int] = {}
    for place, folders, names in os.walk(folder, followlinks=True):
        here = pathlib.Path(place)
        around = {reports, here.resolve(), *here.resolve().parents}  # a link to these would lead in a circle
        inside = [here / name for name in folders if name != ".git" and (here / name).resolve() not in around]
        folders[:] = [each.name for each in inside if not (each / ENVIRONMENT).exists()]
        files = [path for path in (here / name for name in names) if path.is_file()]
        found += inside + files
        sizes |= {path: path.stat().st_size for path in files}
        if len(found) > FILES_MAX:
            raise UsageError(_too_much(folder, f"it holds more than {FILES_MAX} files", sizes))
    if (total := sum(sizes.values())) > BYTES_MAX:
        raise UsageError(_too_much(folder, f"it holds {size(total)}", sizes))
    return found


def _too_much(folder: pathlib.Path, what: str, sizes: dict[pathlib.Path, int]) -> str:
    entries: dict[str, tuple[int, int]] = {}
    for path, amount in sizes.items():
        name = path.relative_to(folder).parts[0]
        total, files = entries.get(name, (0, 0))
        entries[name] = total + amount, files + 1
    largest = sorted(entries, key=lambda name: entries[name], reverse=True)[:3]
    named = ", ".join(f"{name} ({size(entries[name][0])}, {counted(entries[name][1], 'file')})" for name in largest)
    return (
        f"{folder}: {what}. A first look trains in a copy of the folder, so that it overwrites nothing of yours, and "
        f"copies at most {size(BYTES_MAX)} and {FILES_MAX} files. The largest seen: {named}. Copy your code alone to a "
        f"folder of its own, call chaos init there, and name data by its whole path: a link to it is followed"
    )
