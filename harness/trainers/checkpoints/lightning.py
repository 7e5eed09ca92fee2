"""Lightning's layout: files of `torch.save`, or folders of DCP, with names such as `epoch=1-step=300.ckpt`."""

import re

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import grouping
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

_NAME = re.compile(r".*\.ckpt")


class Lightning(Layout):
    order = 50

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        single = {path: [path] for path in place.files if _NAME.fullmatch(path.rpartition("/")[2])}
        return single | grouping.folders_named(place, _NAME)


LAYOUT = Lightning()
