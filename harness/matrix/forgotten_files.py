"""Finds files, other than saves, that the uninterrupted run wrote and a restarted job did not write.

A restarted job may fail to write its best model, an evaluation or an export, or may overwrite a log. The contents of
the files are not compared, because most of them hold dates and times."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence

from harness.log.numbered_names import absent
from harness.matrix.sweep import Forgotten
from harness.plan.run_plan import Plan
from harness.run.beside_saves import File, beside_the_saves
from harness.run.drill import written_folders
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

NAMED_MAX = 5


def forgotten(
    plan: Plan,
    run: Sequence[pathlib.Path],
    again: Sequence[pathlib.Path],
    ids: Sequence[str],
    until_ns: float = math.inf,
) -> Forgotten:
    """Finds files of the uninterrupted run that the restart lacks. `run` holds two folders with files of the
    uninterrupted run: as they were at the restored save, and at the end. `again` holds the folder from which the
    restart began, and the folder of the restart. `ids` holds the run ids of the uninterrupted run and of the restart. A
    restart may lack files that the uninterrupted run wrote after `until_ns` (file time in ns)."""
    both = zip((run, again), ids, strict=True)
    (was, due), (old, came) = ([_beside_the_saves(plan, folder, run_id) for folder in each] for each, run_id in both)
    due = {name: file for name, file in due.items() if name in old or file.changed_ns <= until_ns}
    unwritten = {*absent(due.keys() - old.keys(), came.keys() - old.keys())}
    found = []
    for name, file in due.items():
        kept, there = old.get(name), came.get(name)
        changed = file != was.get(name)
        if name in unwritten:
            found.append(f"{name} was not written")
        elif kept is None:
            continue  # the file is there, perhaps under another number
        elif there is None:
            found.append(f"{name} is gone")
        elif changed and there == kept and file.changed_ns <= until_ns:
            found.append(f"{name} was not written again")
        elif there.bytes < kept.bytes <= file.bytes:
            found.append(f"{name} was begun anew: it holds {there.bytes} bytes, and held {kept.bytes}")
    more = [f"and {len(found) - NAMED_MAX} more"] if len(found) > NAMED_MAX else []
    return Forgotten((*found[:NAMED_MAX], *more), len(due))


def _beside_the_saves(plan: Plan, folder: pathlib.Path, run_id: str) -> Mapping[str, File]:
    saved = plan.workload.checkpoint
    listing = list_checkpoints(CheckpointFolder.look(folder, saved.folder), saved.layout)
    return beside_the_saves(folder, written_folders(plan.launch()), listing, run_id)
