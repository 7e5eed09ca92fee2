"""Tensors of a save that are none of another save's, by name."""

import pathlib
from typing import Any

import pytest
import small_jobs

from harness.matrix.other_tensors import other_tensors
from harness.matrix.save_copies import look
from harness.trainers.checkpoints.shared import digests

torch = pytest.importorskip("torch")


def save(folder: pathlib.Path, **changed: Any) -> pathlib.Path:
    tensors = {"model": {"weight": torch.ones(40)}, "ema": {"weight": torch.full((30,), 2.0), "bias": torch.zeros(20)}}
    tensors["ema"] |= changed
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(tensors, folder / "checkpoints" / "step_30.pt")
    return folder


def test_tensors_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    plan = small_jobs.job("mine", ["x"])
    run, again = save(tmp_path / "run"), save(tmp_path / "again", weight=torch.full((30,), 3.0))
    place, listing = look(plan, run)
    known = set(digests.content(place, listing.finished[0].files).listed)
    assert other_tensors(plan, run, 30, known) == []
    assert other_tensors(plan, again, 30, known) == ["ema.weight"]
    assert other_tensors(plan, again, 20, known) == other_tensors(plan, again, 30, set()) == [], (
        "nothing to hold against"
    )
