"""DeepSpeed's layout: folders such as `global_step20/` with files for each rank, and beside them a file `latest`.

Only DeepSpeed uses names such as `mp_rank_00_model_states.pt` and `zero_pp_rank_0_mp_rank_00_optim_states.pt`.
"""

import re
from collections.abc import Sequence

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

_FOLDER = re.compile(r"global_step\d+")
_RANK_FILE = re.compile(r"(?:^|/)(?:[a-z0-9]+_)*(?:(?:mp|pp)_rank_\d+|expert_\d+)\w*_(?:model|optim)_states\.pt$")


class DeepSpeed(Layout):
    order = 30
    mark, marked_beside, step_key = "latest", True, "global_steps"

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        named = grouping.folders_named(place, _FOLDER)
        found = {path: files for path, files in named.items() if any(map(_RANK_FILE.search, files))}
        found |= grouping.folders_holding(place, lambda path: bool(_RANK_FILE.search(path)))
        here = grouping.within(place.files, place.folder)
        return found or ({place.folder: here} if any(map(_RANK_FILE.search, here)) else {})

    def whole(self, place: CheckpointFolder, path: str, files: Sequence[str]) -> bool:
        if path == place.folder:
            return super().whole(place, path, files)
        parent, _, name = path.rpartition("/")
        latest = place.read(f"{parent}/{self.mark}", 256).decode(errors="replace").strip()
        last = f"{parent}/{latest}"
        newest, mine = (self.step(place, each, place.below(each)) for each in (last, path)) if latest else (None, None)
        begun = latest == name or (newest is not None and mine is not None and mine <= newest)
        return begun and super().whole(place, path, files)


LAYOUT = DeepSpeed()
