"""PyTorch's distributed checkpoints: a folder with `*.distcp`, and `.metadata`, which is written last."""

from __future__ import annotations

from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.place import CheckpointFolder

METADATA = ".metadata"


class Dcp(Layout):
    order = 60

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_holding(place, lambda path: path.endswith((".distcp", f"/{METADATA}")))
        return found or _the_place_itself(place)

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        has_metadata = any(place.sizes[file] for file in files if file.endswith(f"/{METADATA}"))
        return has_metadata and super().whole(place, path, files)


def _the_place_itself(place: CheckpointFolder) -> dict[str, list[str]]:
    """A trainer that keeps one checkpoint and writes over it."""
    here = grouping.within(place.files, place.folder)
    shards = any(path.endswith(".distcp") for path in here)
    return {place.folder: here} if shards else {}


LAYOUT = Dcp()
