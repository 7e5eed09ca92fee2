"""The reference trainer's layout: folders such as `step-00000020/`, each with a manifest of checksums."""

import re
from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

_FOLDER = re.compile(r"step-\d+")


class Reference(Layout):
    order = 10
    mark, manifest, step_key = "manifest.json", True, "step"

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        return grouping.beside(grouping.folders_named(place, _FOLDER), lambda path, files: bool(_manifest(path, files)))

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        return any(place.sizes[file] for file in _manifest(path, files))


def _manifest(path: str, files: Sequence[str]) -> list[str]:
    return [file for file in grouping.within(files, path) if file.startswith(f"{path}/manifest")]


LAYOUT = Reference()
