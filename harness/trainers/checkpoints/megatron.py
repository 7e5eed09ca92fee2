"""Megatron-LM's layout: folders such as `iter_0000010/`, and a file `latest_checkpointed_iteration.txt`."""

import re
from collections.abc import Sequence

from harness.trainers.checkpoints.contract import FoundCheckpoint, Layout, Pointer
from harness.trainers.checkpoints.shared import grouping, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

TRACKER = "latest_checkpointed_iteration.txt"
_FOLDER = re.compile(r"iter_\d{7,}")


class Megatron(Layout):
    order = 20
    mark, marked_beside, step_key = TRACKER, True, "iteration"

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        return grouping.folders_named(place, _FOLDER)

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        told, step = _told(place, _tracker(path)), names.step_in(path.rpartition("/")[2])
        return told is not None and step is not None and step <= told and super().whole(place, path, files)

    def pointer(self, place: CheckpointFolder, checkpoints: Sequence[FoundCheckpoint]) -> Pointer | None:
        for path in dict.fromkeys(_tracker(each.path) for each in checkpoints):
            if path in place.sizes:
                told = _told(place, path)
                return Pointer(path, next((each.path for each in checkpoints if each.step == told), None))
        return None


def _tracker(path: str) -> str:
    return f"{path.rpartition('/')[0]}/{TRACKER}"


def _told(place: CheckpointFolder, tracker: str) -> int | None:
    text = place.read(tracker, 64).strip()
    return int(text) if text.isdigit() else None


LAYOUT = Megatron()
