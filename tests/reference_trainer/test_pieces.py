"""The part of a batch that each rank takes: compared with the others', and cut into pieces that fit into memory."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from job import Job, Nursery, completed
from told import Told, answer, answers, ordered
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.log.truth import Decision, Kind
from harness.node.emitter import Emitter
from reference_trainer.damage import Damage
from reference_trainer.data import Batch, Loaded, share
from reference_trainer.pieces import Pieces
from reference_trainer.replicas import Setback
from reference_trainer.shares import compare, tally
from reference_trainer.train import GradientSync


@given(sequences=st.integers(1, 70), number=st.integers(1, 9), fits=st.integers(1, 20))
def test_smaller_until_they_fit_and_every_sequence_once(sequences: int, number: int, fits: int) -> None:
    emit = Told()
    pieces = Pieces(emit, 3, number)
    share = torch.arange(sequences).view(sequences, 1)
    while max(len(piece) for piece, _ in pieces.of(share, share)) > fits:
        before = pieces.number
        assert pieces.did_not_fit(7, sequences, may_try_again=True) and pieces.number > before
    cut = pieces.of(share, share)
    assert torch.cat([piece for piece, _ in cut]).equal(share)
    if told := [event for event in emit.events if event["event"] == "anomaly"]:
        assert f"--accumulate {len(cut)}" in told[-1]["detail"] and told[-1]["kind"] == "out_of_memory"
        assert told[-1]["at_step"] == 7
    assert emit.answers() == [answer(Kind.GPU, Decision.IGNORE, 3)] * len(told)


@pytest.mark.parametrize(("sequences", "may"), [(1, True), (8, False)])
def test_no_second_try_for_one_sequence_or_while_gradients_are_summed(sequences: int, may: bool) -> None:
    emit = Told()
    pieces = Pieces(emit, 0, 1)
    assert not pieces.did_not_fit(7, sequences, may_try_again=may)
    assert pieces.number == 1 and emit.answers() == [answer(Kind.GPU, Decision.RESTART_IN_PLACE, 0)]


def test_an_order_refuses_large_pieces_while_it_is_there(tmp_path: pathlib.Path) -> None:
    orders, answers = ordered(tmp_path, kind="out_of_memory", fits=2)
    damage, model = Damage(orders, answers, 1, Emitter(None)), nn.Linear(1, 1)
    for step in (5, 6):
        damage.before_step(step, model)
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(3, 1))
        model(torch.ones(2, 1))
    found = json.loads((answers / "a.done").read_text())
    assert (found["step"], found["changed"]) == (5, 1)
    (orders / "a.json").unlink()
    damage.before_step(7, model)
    model(torch.ones(3, 1))


def test_a_trainer_out_of_memory_goes_on_with_the_same_losses(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    whole = completed(nursery, tmp_path / "whole", 8, nproc=2)
    orders, answers = ordered(tmp_path, kind="out_of_memory", fits=1)
    with Job(nursery, tmp_path / "cut", 8, nproc=2) as cut:
        cut.start("a", CHAOS_DAMAGE=str(orders), CHAOS_ANSWERS=str(answers))
        assert cut.code("a") == 0, cut.output()
    assert [each["kind"] for each in cut.seen("anomaly")] == ["out_of_memory"] * 2, "4 → 2 → 1, and it stays so"
    for step, loss in whole.losses().items():
        assert cut.losses()[step] == pytest.approx(loss, rel=2e-5)
    assert len(cut.seen("step", rank=1)) == 8


def test_the_point_of_no_return_is_the_end_of_the_last_forward_pass(one_rank: None) -> None:
    parallel = DistributedDataParallel(nn.Linear(1, 1), find_unused_parameters=True, gradient_as_bucket_view=True)
    sync = GradientSync(parallel, Emitter(None), meanwhile=lambda: None)
    with parallel.no_sync():
        parallel(torch.ones(1, 1)).sum().backward()
        assert not sync.begun
    with pytest.raises(RuntimeError):
        parallel(torch.ones(1, 2))
    assert not sync.begun, "it may be tried again"
    parallel.zero_grad()
    loss = parallel(torch.ones(1, 1)).sum()
    assert sync.begun
    loss.backward()
    assert parallel.module.weight.grad is not None and parallel.module.weight.grad.tolist() == [[1.0]]


def batch(size: int) -> Batch:
    return Batch(np.random.default_rng(size).permutation(10_000)[:size].astype(np.int64), 0)


def parts(whole: Batch, world: int) -> list[np.ndarray[Any, Any]]:
    return [whole.indices[share(len(whole.indices), rank, world)] for rank in range(world)]


def compared(whole: Batch, read: list[np.ndarray[Any, Any]], rank: int = 0) -> list[dict[str, Any]]:
    emit = Told()
    try:
        compare(7, whole, [tally(each) for each in read], emit, rank)
    except Setback:
        emit("setback")
    return emit.events


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
    assert [each["event"] for each in told] == ["anomaly", "diagnosis", "setback"] and told[0]["suspect"] == victim
    assert answers(told) == [answer(Kind.BAD_DATA, Decision.ROLL_BACK, victim)]
    assert told[0]["kind"] == "data_skew" and f"rank {victim} read" in told[0]["detail"]
    assert compared(whole, read, rank=1) == [{"event": "setback"}], "the others only go back"


@pytest.mark.parametrize(("kind", "share_of", "expected"), [
    ("fewer", 0.5, [0, 1, 2, 3]), ("duplicate", 0.5, [0, 1, 2, 3, 0, 1, 2, 3]), ("duplicate", 1, [0] * 8), ("fewer", 1, [0]),
])  # fmt: skip
def test_an_order_skews_one_batch_and_the_next_one_is_whole(
    kind: str, share_of: float, expected: list[int], tmp_path: pathlib.Path
) -> None:
    orders, answers = ordered(tmp_path, kind=kind, share=share_of)
    whole = Loaded(batch(8), np.arange(8), torch.arange(8).view(8, 1), torch.arange(8).view(8, 1))
    damage = Damage(orders, answers, 1, Emitter(None))
    damage.before_step(5, torch.nn.Linear(1, 1))
    skewed = damage.of_batch(whole)
    for found in (skewed.indices, skewed.inputs.flatten(), skewed.targets.flatten()):
        assert found.tolist() == expected
    assert json.loads((answers / "a.done").read_text())["changed"] == 8 - len(set(expected))
    damage.before_step(6, torch.nn.Linear(1, 1))
    assert damage.of_batch(whole) is whole
