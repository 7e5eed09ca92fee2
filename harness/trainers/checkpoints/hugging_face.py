"""The Hugging Face Trainer's: `checkpoint-500/`; of its files `trainer_state.json` is written last."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.place import CheckpointFolder

STATE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-\d+")


class HuggingFace(Layout):
    order = 40
    mark, step_key = STATE, "global_step"

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_named(place, _FOLDER)
        return found if any(f"{path}/{STATE}" in place.sizes for path in found) else {}

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        return place.sizes.get(f"{path}/{STATE}", 0) > 0 and super().whole(place, path, files)


LAYOUT = HuggingFace()
