"""A share of the batch that does not fit into memory is cut into smaller pieces, and nothing of it is lost."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from job import Job, Nursery
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from harness.node.emitter import Emitter
from reference_trainer.damage import Damage
from reference_trainer.pieces import Pieces
from reference_trainer.train import GradientSync


@given(sequences=st.integers(1, 70), number=st.integers(1, 9), fits=st.integers(1, 20))
def test_smaller_until_they_fit_and_every_sequence_once(sequences: int, number: int, fits: int) -> None:
    told: list[dict[str, Any]] = []
    pieces = Pieces(lambda _, **fields: told.append(fields), 3, number)  # type: ignore[arg-type]
    share = torch.arange(sequences).view(sequences, 1)
    while max(len(piece) for piece, _ in pieces.of(share, share)) > fits:
        before = pieces.number
        assert pieces.did_not_fit(7, sequences, may_try_again=True) and pieces.number > before
    cut = pieces.of(share, share)
    assert torch.cat([piece for piece, _ in cut]).equal(share)
    if told:
        assert f"--accumulate {len(cut)}" in told[-1]["detail"] and told[-1]["kind"] == "out_of_memory"
        assert told[-1]["at_step"] == 7


@pytest.mark.parametrize(("sequences", "may"), [(1, True), (8, False)])
def test_no_second_try_for_one_sequence_or_while_gradients_are_summed(sequences: int, may: bool) -> None:
    pieces = Pieces(Emitter(None), 0, 1)
    assert not pieces.did_not_fit(7, sequences, may_try_again=may)
    assert pieces.number == 1


def test_an_order_refuses_large_pieces_while_it_is_there(tmp_path: pathlib.Path) -> None:
    orders, answers = tmp_path / "orders", tmp_path / "answers"
    orders.mkdir()
    answers.mkdir()
    order = orders / "a.json"
    order.write_text(json.dumps({"rank": 1, "kind": "out_of_memory", "fits": 2}))
    damage, model = Damage(orders, answers, 1, Emitter(None)), nn.Linear(1, 1)
    for step in (5, 6):
        damage.before_step(step, model)
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.ones(3, 1))
        model(torch.ones(2, 1))
    found = json.loads((answers / "a.done").read_text())
    assert (found["step"], found["changed"]) == (5, 1)
    order.unlink()
    damage.before_step(7, model)
    model(torch.ones(3, 1))


def test_a_trainer_out_of_memory_goes_on_with_the_same_losses(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    with Job(nursery, tmp_path / "whole", 8, nproc=2) as whole:
        whole.start("a")
        assert whole.code("a") == 0, whole.output()
    orders, answers = tmp_path / "orders", tmp_path / "answers"
    orders.mkdir()
    answers.mkdir()
    (orders / "a.json").write_text(json.dumps({"rank": 1, "kind": "out_of_memory", "fits": 1}))
    with Job(nursery, tmp_path / "cut", 8, nproc=2) as cut:
        cut.start("a", CHAOS_DAMAGE=str(orders), CHAOS_ANSWERS=str(answers))
        assert cut.code("a") == 0, cut.output()
    assert [each["kind"] for each in cut.seen("anomaly")] == ["out_of_memory"] * 2, "4 → 2 → 1, and it stays so"
    for step, loss in whole.losses().items():
        assert cut.losses()[step] == pytest.approx(loss, rel=2e-5)
    assert len(cut.seen("step", rank=1)) == 8


def test_the_point_of_no_return_is_the_end_of_the_last_forward_pass(tmp_path: pathlib.Path) -> None:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
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
    finally:
        distributed.destroy_process_group()
