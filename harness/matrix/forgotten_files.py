"""What a resumed job forgot beside the state: files that the run had written by then, and the restart had not.

A best model, an evaluation, an export, a log that was begun anew. Contents are not compared: most of them hold times.
"""

from __future__ import annotations

import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.plan.model import Plan
from harness.run.drill import saved_folders
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared.place import CheckpointFolder

NAMED_MAX = 5
_NUMBER = re.compile(r"[0-9a-f]{8,}|\d+")  # of a step, a time, a process


class _File(NamedTuple):
    bytes: int
    changed_ns: int


def forgotten(plan: Plan, run: Sequence[pathlib.Path], again: Sequence[pathlib.Path]) -> list[str]:
    """In words. Of each of the two: what was there at the save that was restored, and what is there now."""
    (was, due), (old, came) = ([_beside_the_saves(plan, folder) for folder in each] for each in (run, again))
    new = Counter(_pattern(name) for name in came.keys() - old.keys())
    found = []
    for name, file in due.items():
        kept, there = old.get(name), came.get(name)
        changed = file != was.get(name)
        if there is None and kept is not None:
            found.append(f"{name} is gone")
        elif there is None and new[_pattern(name)]:
            new[_pattern(name)] -= 1  # the same under another number
        elif there is None:
            found.append(f"{name} was not written")
        elif changed and kept is not None and there == kept:
            found.append(f"{name} was not written again")
        elif kept is not None and there is not None and there.bytes < kept.bytes <= file.bytes:
            found.append(f"{name} was begun anew: it holds {there.bytes} bytes, and held {kept.bytes}")
    more = [f"and {len(found) - NAMED_MAX} more"] if len(found) > NAMED_MAX else []
    return found[:NAMED_MAX] + more


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", name)


def _beside_the_saves(plan: Plan, folder: pathlib.Path) -> Mapping[str, _File]:
    saved, found = plan.workload.checkpoint, dict[str, _File]()
    listing = list_checkpoints(CheckpointFolder.look(folder, saved.folder), saved.layout)
    own = {path for each in listing.checkpoints for path in (each.path, *each.files)}
    own |= {listing.pointer.path} if listing.pointer else set()
    for name in saved_folders(plan.launch()):
        place = CheckpointFolder.look(folder, name)
        found |= {path: _File(place.sizes[path], place.times_ns[path]) for path in place.files}
    return {path: file for path, file in found.items() if own.isdisjoint(_with_its_folders(path))}


def _with_its_folders(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:number]) for number in range(1, len(parts) + 1))
