"""Compares checkpoints with the digests that a stored run's log holds for their tensors."""

from __future__ import annotations

import pathlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.errors import FaultError
from harness.preflight.verification import Save, State
from harness.timeline import timeline
from harness.trainers.checkpoints.contract import FoundCheckpoint
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder


class StoredSaves:
    """The digests of tensors in a stored run's checkpoints, and the losses of the run's steps, from the run's log.
    Raises the errors of `timeline.load` if the log cannot be read."""

    def __init__(self, folder: pathlib.Path):
        self._name, run = f"run {folder.resolve().name}", timeline.load(folder)
        kept = run.steps.survives & np.isfinite(run.steps.loss)
        self._loss = dict(zip(run.steps.step[kept].tolist(), run.steps.loss[kept].tolist(), strict=True))
        self._told = defaultdict[tuple[str, object], list[Mapping[str, Any]]](list)
        for event in run.published:
            self._told[str(event.get("path")).rpartition("/")[2], event.get("step")].append(event)

    def hold(self, save: Save, place: CheckpointFolder, found: FoundCheckpoint) -> None:
        """Compares a checkpoint with the digests of this checkpoint in the run's log. If a step was saved twice, the
        checkpoint may match either digest."""
        told = [each for each in self._told[found.name, save.step] if each.get("tensors")]
        try:
            content = digests.content(place, found.files)
        except (OSError, FaultError):
            return  # reported already
        if any(each["tensors"] == content.of_tensors for each in told):
            save.verified_by = self._name
            save.loss = save.loss if save.step is None else self._loss.get(save.step, save.loss)
        elif told:
            listed = set[str]().union(*(each.get("tensor_digests") or () for each in told))
            other = [] if content.sampled else _other(save, listed)
            for file, tensor in other or [("", "")]:
                save.find(State.DAMAGED, f"is not what the harness saw in {self._name}", file, tensor)
        else:
            save.find(State.UNKNOWN, f"{self._name} tells nothing of its content: it was not compared")


def _other(save: Save, listed: set[str]) -> list[tuple[str, str]]:
    smallest = min((int(each.partition(" ")[0]) for each in listed), default=0)
    found = []
    for file, part in ((file, part) for file, parts in save.parts.items() for part in parts if part.span.name):
        told = f"{part.content.size} {part.sha256[: digests.SHORT]}" in listed
        if part.content.trained and part.content.size >= smallest and not told:
            found.append((file, part.span.name))
    return found
