"""Samples of each rank, compared before the update."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.node.emitter import Emitter
from reference_trainer.damage import Damage
from reference_trainer.data import Batch, Loaded, share
from reference_trainer.replicas import Setback
from reference_trainer.shares import compare, tally


def batch(size: int) -> Batch:
    return Batch(np.random.default_rng(size).permutation(10_000)[:size].astype(np.int64), 0)


def parts(whole: Batch, world: int) -> list[np.ndarray[Any, Any]]:
    return [whole.indices[share(len(whole.indices), rank, world)] for rank in range(world)]


def compared(whole: Batch, read: list[np.ndarray[Any, Any]], rank: int = 0) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []

    def emit(event: str, **fields: Any) -> None:
        told.append(fields)

    try:
        compare(7, whole, [tally(each) for each in read], emit, rank)  # type: ignore[arg-type]
    except Setback:
        told.append({"kind": "setback"})
    return told


@given(world=st.integers(1, 9), more=st.integers(0, 30))
def test_each_rank_with_its_part_is_fine_however_uneven(world: int, more: int) -> None:
    whole = batch(world + more)
    assert compared(whole, parts(whole, world)) == []


@pytest.mark.parametrize("how", ["fewer", "duplicate", "of another rank"])
@given(victim=st.integers(0, 3))
def test_a_rank_with_other_samples_is_named_by_rank_0_and_all_go_back(how: str, victim: int) -> None:
    whole = batch(18)
    read = parts(whole, 4)
    wrong = {"fewer": read[victim][:-1], "duplicate": read[victim].repeat(2)[: len(read[victim])]}
    read[victim] = wrong.get(how, read[(victim + 2) % 4][: len(read[victim])])
    told = compared(whole, read)
    assert [each.get("suspect") for each in told] == [victim, None]
    assert told[0]["kind"] == "data_skew" and f"rank {victim} read" in told[0]["detail"]
    assert compared(whole, read, rank=1) == [{"kind": "setback"}], "the others only go back"


@pytest.mark.parametrize(("kind", "share_of", "expected"), [
    ("fewer", 0.5, [0, 1, 2, 3]), ("duplicate", 0.5, [0, 1, 2, 3, 0, 1, 2, 3]), ("duplicate", 1, [0] * 8), ("fewer", 1, [0]),
])  # fmt: skip
def test_an_order_skews_one_batch_and_the_next_one_is_whole(
    kind: str, share_of: float, expected: list[int], tmp_path: pathlib.Path
) -> None:
    orders, answers = tmp_path / "orders", tmp_path / "answers"
    orders.mkdir()
    answers.mkdir()
    (orders / "a.json").write_text(json.dumps({"rank": 1, "kind": kind, "share": share_of}))
    whole = Loaded(batch(8), np.arange(8), torch.arange(8).view(8, 1), torch.arange(8).view(8, 1))
    damage = Damage(orders, answers, 1, Emitter(None))
    damage.before_step(5, torch.nn.Linear(1, 1))
    skewed = damage.of_batch(whole)
    for found in (skewed.indices, skewed.inputs.flatten(), skewed.targets.flatten()):
        assert found.tolist() == expected
    assert json.loads((answers / "a.done").read_text())["changed"] == 8 - len(set(expected))
    damage.before_step(6, torch.nn.Linear(1, 1))
    assert damage.of_batch(whole) is whole
