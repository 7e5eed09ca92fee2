"""Defines what a layout must provide: a layout is the way in which a trainer arranges its checkpoints on the disk.

Each layout is one file in `harness/trainers/checkpoints/`. A layout's name in YAML, as in `workload.checkpoint:
{layout: lightning}`, is its file's name. Each layout's file defines `LAYOUT`, an instance of a subclass of `Layout`.
The name `auto` means the first layout that recognises a checkpoint. Layouts need no torch and unpickle no file.

Paths of checkpoints are relative to the run's folder. Nodes write the checkpoints' files, which are not trusted.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from harness.plugins import Family
from harness.trainers.checkpoints.shared import formats, ledgers, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

AUTO = "auto"
POINTER_BYTES_MAX = 4096


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint on the disk. `path` is the checkpoint's folder or, without a folder, its first file."""

    path: str
    files: tuple[str, ...]
    step: int | None
    whole: bool  # by the layout's own sign: a marker, a complete header, an end of the archive

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Pointer:
    """A link or small text file that names the newest checkpoint. `target` is the checkpoint's path, if it exists."""

    path: str
    target: str | None


@dataclass(frozen=True)
class Listing:
    """The checkpoints in one folder, the newest first."""

    layout: str
    checkpoints: Sequence[FoundCheckpoint]
    pointer: Pointer | None = None

    @property
    def finished(self) -> list[FoundCheckpoint]:
        return [each for each in self.checkpoints if each.whole]


class Layout(abc.ABC):
    """The way in which a trainer arranges its checkpoints on the disk."""

    order: int  # `auto` asks the layout with the smallest first
    mark = ""  # the file of a checkpoint that is written last, if any
    marked_beside = False  # the file written last lies beside the checkpoints, for all of them
    step_key = ""  # key under which a file holds its step, in this layout
    manifest = False  # the mark lists the contents of the other files
    shapes: Sequence[tuple[str, type[msgspec.Struct]]] = ((".index.json", formats.Index),)  # JSON files, by suffix

    @abc.abstractmethod
    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        """Returns the files of each checkpoint that this layout recognises, by the checkpoint's path."""

    def step(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> int | None:
        """Returns a checkpoint's step, found in its name, in one of its files, or in the run's records of saves."""
        name = names.of_save(path)
        told = (step for file in files if (step := formats.step_in(place, file)) is not None)
        if names.step_in(name) is None and (step := next(told, None)) is not None:
            return step
        return names.step_of(name, ledgers.step(place, files) if names.is_ambiguous(name) else None)

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        """Returns True if a checkpoint is complete: by default, if its files of known formats are complete."""
        return bool(files) and all(formats.is_complete(place, file) for file in files)

    def pointer(self, place: CheckpointFolder, checkpoints: Sequence[FoundCheckpoint]) -> Pointer | None:
        """Returns the link or small file that names the newest checkpoint, or `None` if there is none."""
        return find_pointer(place, checkpoints)

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def list(self, place: CheckpointFolder) -> Listing:
        found = []
        for path, files in self.groups(place).items():
            whole = not place.is_temporary(path) and self.whole(place, path, files)
            found.append(FoundCheckpoint(path, tuple(sorted(files)), self.step(place, path, files), whole))
        ordered = sorted(found, key=lambda each: _age(place, each), reverse=True)
        return Listing(self.name, ordered, self.pointer(place, ordered))


def _age(place: CheckpointFolder, checkpoint: FoundCheckpoint) -> tuple[int, int, str]:
    changed = max((place.changed_ns(file) for file in checkpoint.files), default=0)
    return (-1 if checkpoint.step is None else checkpoint.step), changed, checkpoint.path


def find_pointer(place: CheckpointFolder, checkpoints: Sequence[FoundCheckpoint]) -> Pointer | None:
    """Returns the link or small file that names the newest checkpoint. A link or file with a usual name, such as
    `latest`, is returned even if the checkpoint that it names is missing."""
    mine = {file for each in checkpoints for file in each.files}
    by_name = {name: each.path for each in reversed(checkpoints) for name in (each.path, each.name)}
    folders = {each.path.rpartition("/")[0] for each in checkpoints}
    beside = [path for path in [*place.links, *place.sizes] if path not in mine and path.rpartition("/")[0] in folders]
    dangling = None
    for path in sorted(beside):
        target = _named_by(place, path)
        if target in by_name:
            return Pointer(path, by_name[target])
        if names.is_pointer(path) and target is not None:
            dangling = dangling or Pointer(path, None)
    return dangling


def _named_by(place: CheckpointFolder, path: str) -> str | None:
    if path in place.links:
        return place.links[path].rstrip("/").rpartition("/")[2]
    if not 0 < place.sizes[path] <= POINTER_BYTES_MAX:
        return None
    text = place.read(path, POINTER_BYTES_MAX).decode(errors="replace").strip()
    return text.rstrip("/").rpartition("/")[2] if text and "\n" not in text else None


_FAMILY = Family("layout", "harness.trainers.checkpoints", "LAYOUT")
load_layout: Callable[[str], Layout] = _FAMILY.load


@functools.cache
def layout_names() -> tuple[str, ...]:
    """Returns the names of all layouts, in the order in which `auto` tries them."""
    return tuple(sorted(_FAMILY.names(), key=lambda name: load_layout(name).order))


def check_layout(name: str) -> str:
    """Returns `name` if it is a layout of checkpoints or `auto`. Raises `ValueError` for any other name."""
    return _FAMILY.known(name, also=(AUTO,))


def list_checkpoints(place: CheckpointFolder, layout: str = AUTO) -> Listing:
    """Lists checkpoints by this layout or, for `auto`, by the first layout that recognises a checkpoint."""
    if layout != AUTO:
        return load_layout(layout).list(place)
    for name in layout_names():
        listing = load_layout(name).list(place)
        if listing.checkpoints:
            return listing
    return Listing(AUTO, ())
