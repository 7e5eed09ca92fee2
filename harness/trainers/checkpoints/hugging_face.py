"""The Hugging Face Trainer's layout: folders such as `checkpoint-500/`, each with a file `trainer_state.json`."""

import re
from collections.abc import Sequence

import msgspec

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

STATE = "trainer_state.json"
_FOLDER = re.compile(r"checkpoint-\d+")


class _State(msgspec.Struct):
    global_step: int


class HuggingFace(Layout):
    order = 40
    mark, step_key = STATE, "global_step"
    shapes = (*Layout.shapes, (f"/{STATE}", _State))

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        return grouping.beside(grouping.folders_named(place, _FOLDER), lambda path, _: f"{path}/{STATE}" in place.sizes)

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        return place.sizes.get(f"{path}/{STATE}", 0) > 0 and super().whole(place, path, files)


LAYOUT = HuggingFace()
