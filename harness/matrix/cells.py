"""Lists the damages to try on the newest checkpoint's files, and on the pointer file that names this checkpoint."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.faults.shared.checkpoint_damage import CHECKSUMS_BYTES_MAX, Kind, Order, Part, holds_checksum
from harness.trainers.checkpoints.contract import Listing
from harness.trainers.checkpoints.shared import formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

IN_PLACE: tuple[Kind, ...] = ("bit_flip", "zero_page")
WHOLE: tuple[Kind, ...] = ("truncate", "empty", "missing")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Cell:
    kind: Kind
    part: Part
    file: str

    @property
    def order(self) -> Order:
        return Order(self.kind, self.part, glob.escape(self.file))


def cells(place: CheckpointFolder, listing: Listing) -> Iterator[Cell]:
    for file in _one_of_each_kind(place, listing):
        yield from _of_file(place, file, older=len(listing.finished) > 1)
    if listing.pointer:
        path = listing.pointer.path
        kinds: list[Kind] = ["missing", "dangling_latest"]
        kinds += ["stale_latest"] if len(listing.finished) > 1 else []
        kinds += ["empty"] if path in place.sizes else []
        yield from (Cell(kind, "pointer", path) for kind in kinds)


def _of_file(place: CheckpointFolder, file: str, older: bool) -> Iterator[Cell]:
    parts: tuple[Part, ...] = ("tensor", "header") if formats.spans(place, file) else ("metadata",)
    yield from (Cell(kind, part, file) for part in parts for kind in IN_PLACE)
    yield from (Cell(kind, parts[0], file) for kind in WHOLE)
    if older:
        yield Cell("mixed_steps", parts[0], file)
    if parts[0] == "metadata" and holds_checksum(place.read(file, CHECKSUMS_BYTES_MAX)):
        yield Cell("wrong_manifest", "metadata", file)


def _one_of_each_kind(place: CheckpointFolder, listing: Listing) -> list[str]:
    newest = listing.finished[0]
    found: dict[str, str] = {}
    for path in sorted(newest.files, key=lambda path: place.sizes.get(path, 0)):
        if place.sizes.get(path):
            found[_NUMBER.sub("#", path.removeprefix(newest.path))] = path
    return sorted(found.values())
