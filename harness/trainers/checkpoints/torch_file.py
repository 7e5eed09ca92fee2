"""A layout of single files of `torch.save`, such as `ckpt_100.pt`. The files of all ranks form one checkpoint."""

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import formats, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder


class TorchFile(Layout):
    order = 90

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in place.files:
            if formats.is_of_torch(place, path):
                found.setdefault(names.without_rank(path), []).append(path)
        return {files[0]: files for files in found.values()}


LAYOUT = TorchFile()
