"""Finds the files that a job wrote beside its checkpoints, such as an export, a best model or a log."""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.errors import FaultError
from harness.trainers.checkpoints.contract import Listing
from harness.trainers.checkpoints.shared import digests, formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.names import is_temporary

READ_MAX, TENSORS_MAX = 20, 64  # files with tensors, and the largest tensors of each


class File(NamedTuple):
    bytes: int
    changed_ns: int


def beside_the_saves(run_dir: pathlib.Path, folders: Sequence[str], saves: Listing, run_id: str) -> Mapping[str, File]:
    """Maps names to finished files in `folders`, except the files of numbered checkpoints.

    In the names, `{run_id}` stands for the run's id. A checkpoint without a step, such as `best.pt`, is included.
    Raises `FaultError` if the harness may not read a folder, or if a folder holds too many files.
    """
    series = [each for each in saves.checkpoints if each.step is not None]
    own = {path for each in series for path in (each.path, *each.files)}
    own |= {saves.pointer.path} if saves.pointer else set()
    found = dict[str, File]()
    for name in folders:
        place = CheckpointFolder.look(run_dir, name)
        if closed := place.unreadable_folders:
            raise FaultError(f"{closed[0]}: the harness may not read it")
        if place.is_full:
            raise FaultError(f"{name}: more lies there than the harness looks at")
        found |= {path: File(place.sizes[path], place.times_ns[path]) for path in place.files}
    beside = {path: file for path, file in found.items() if own.isdisjoint(_with_its_folders(path))}
    return {path.replace(run_id, "{run_id}"): file for path, file in beside.items() if not is_temporary(path)}


def holding_tensors(
    run_dir: pathlib.Path, beside: Mapping[str, File], run_id: str, until_s: float
) -> Iterator[dict[str, Any]]:
    """Yields, for the event `files.left`, each file beside the checkpoints that holds tensors and is not too large."""
    read = 0
    for name, file in sorted(beside.items()):
        path = name.replace("{run_id}", run_id)
        place = CheckpointFolder(run_dir, ".", {path: file.bytes})
        if read == READ_MAX or time.monotonic() > until_s:
            return
        with contextlib.suppress(OSError, FaultError):
            with place.open(path) as opened:
                is_known = formats.tensors(opened) is not None
            held = digests.content(place, [path]) if is_known and file.bytes <= digests.BYTES_MAX else None
            if held is not None and held.tensors:
                read += 1
                yield {"file": name, "tensor_digests": held.listed[:TENSORS_MAX]}


def _with_its_folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:number]) for number in range(1, len(parts) + 1))
