"""DeepSpeed's: `global_step20/` with a file for each rank, and beside it `latest`, which is written last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

_FOLDER = re.compile(r"global_step\d+")
_RANK_FILE = re.compile(r"_(?:model|optim)_states\.pt$")


class DeepSpeed(Layout):
    order = 30
    mark, marked_beside, step_key = "latest", True, "global_steps"

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_named(place, _FOLDER)
        return {path: files for path, files in found.items() if any(_RANK_FILE.search(file) for file in files)}

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        """Tells whether a save is whole: only if it is not newer than the one that `latest` names."""
        parent, _, name = path.rpartition("/")
        latest = names.step_in(place.read(f"{parent}/latest", 256).decode(errors="replace").strip())
        step = names.step_in(name)
        return latest is not None and step is not None and step <= latest and super().whole(place, path, files)


LAYOUT = DeepSpeed()
