"""The layout of PyTorch's distributed checkpoints: folders with `*.distcp` files and, written last, `.metadata`."""

from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.formats import METADATA


class Dcp(Layout):
    order = 60

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_holding(place, lambda path: path.endswith((".distcp", f"/{METADATA}")))
        if found:
            return found
        # A trainer may keep one checkpoint and write over it: then the place itself is the checkpoint.
        here = grouping.within(place.files, place.folder)
        return {place.folder: here} if any(path.endswith(".distcp") for path in here) else {}

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        has_metadata = any(place.sizes[file] for file in files if file.endswith(f"/{METADATA}"))
        return has_metadata and super().whole(place, path, files)


LAYOUT = Dcp()
