"""A layout of folders of files that `torch.save` wrote, such as `step_100/model.pt` and `step_100/optimizer.pt`."""

from harness.trainers.checkpoints.contract import Layout
from harness.trainers.checkpoints.shared import formats, grouping, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder


class TorchFolder(Layout):
    order = 80

    def groups(self, place: CheckpointFolder) -> dict[str, list[str]]:
        found = grouping.folders_holding(place, lambda path: formats.is_of_torch(place, path))
        return {path: files for path, files in found.items() if not _of_several_steps(path, files)}


def _of_several_steps(path: str, files: list[str]) -> bool:
    steps = {names.step_in(file.rpartition("/")[2]) for file in grouping.within(files, path)}
    return len(steps - {None}) > 1


LAYOUT = TorchFolder()
