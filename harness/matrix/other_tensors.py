"""Names the tensors in which a save of a restarted job differs from the same save of the uninterrupted run."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator, Set

from harness.errors import FaultError
from harness.matrix.save_copies import look
from harness.plan.run_plan import Plan
from harness.trainers.checkpoints.shared import formats
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.digests import BYTES_MAX, SHORT, TensorContent, blocks


def other_tensors(plan: Plan, run_dir: pathlib.Path, save: int, known: Set[str]) -> list[str]:
    """Names the tensors of the save with number `save` that equal no tensor in `known`, which holds the size and digest
    of each tensor of another save. Returns no names if the save is gone, or is so large that the harness digested only
    samples of it."""
    try:
        place, listing = look(plan, run_dir)
        found = next((each for each in listing.finished if each.step == save), None)
        if not known or found is None or sum(place.sizes.get(path, 0) for path in found.files) > BYTES_MAX:
            return []
        return list(dict.fromkeys(name for path in found.files for name in _differing(place, path, known)))
    except (OSError, FaultError, ValueError):
        return []


def _differing(place: CheckpointFolder, path: str, known: Set[str]) -> Iterator[str]:
    smallest = min(int(each.partition(" ")[0]) for each in known)  # `known` holds only the largest tensors
    with place.open(path) as file:
        for span in formats.look(file, path).spans:
            size, digest = span.end - span.start, hashlib.sha256()
            for block in blocks(file, (span.start, span.end)):
                digest.update(block)
            trained = TensorContent(size, digest.hexdigest(), False).trained
            if span.name and trained and size >= smallest and f"{size} {digest.hexdigest()[:SHORT]}" not in known:
                yield span.name
