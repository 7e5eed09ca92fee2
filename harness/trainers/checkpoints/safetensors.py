"""The layout of safetensors: single files, or folders of `*.safetensors` files, possibly with an index."""

from collections.abc import Sequence

import msgspec

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.formats import Index

INDEX_BYTES_MAX = 16 * 2**20  # that of a model of 670 billion parameters has 9


class Safetensors(Layout):
    order = 70

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_holding(place, lambda path: path.endswith(".safetensors"))
        here = grouping.within(place.files, place.folder)
        single = {path: [path] for path in here if path.endswith(".safetensors")}
        if any(path.endswith(".index.json") for path in here):
            return found | ({place.folder: here} if single else {})
        return found | single

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        named = [name for file in files if file.endswith(".index.json") for name in _named(place, file)]
        return all(name in place.sizes for name in named) and super().whole(place, path, files)


def _named(place: CheckpointFolder, index: str) -> set[str]:
    try:
        names = set(msgspec.json.decode(place.read(index, INDEX_BYTES_MAX), type=Index).weight_map.values())
        return {f"{index.rpartition('/')[0]}/{name}" for name in names}
    except (ValueError, RecursionError):
        return {""}  # an index that cannot be read: not whole


LAYOUT = Safetensors()
