"""Digests of the weights: one flipped bit changes them, and the majority says whose are wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from told import Told, answer
from torch import nn

from harness.log.truth import Decision, Kind
from harness.node.emitter.silent_corruption import set_bit
from reference_trainer.replicas import MODULUS, Replicas, Setback, digest, named, outvoted


def model(seed: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)).to(dtype)


@given(place=st.integers(0, 3), element=st.integers(0, 34), bit=st.integers(0, 31))
@settings(max_examples=80, deadline=None)
def test_any_flipped_bit_changes_the_digest(place: int, element: int, bit: int) -> None:
    one = model()
    before = digest(one).item()
    tensor = list(one.parameters())[place]
    set_bit(tensor, element % tensor.numel(), bit, None)
    assert digest(one).item() != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_it_is_the_same_for_the_same_weights_and_exact_as_a_float(dtype: torch.dtype) -> None:
    first, again, other = (digest(model(seed, dtype)).item() for seed in (1, 1, 2))
    assert first == again != other
    assert 0 <= first < MODULUS and int(float(first)) == first


def test_the_majority_says_who_drifted() -> None:
    assert outvoted([7.0] * 4) is None
    assert outvoted([7.0, 9.0, 7.0]) == [1]
    assert outvoted([9.0, 7.0, 7.0, 8.0, 7.0]) == [0, 3]
    assert outvoted([7.0, 9.0]) == [] and outvoted([7.0, 7.0, 9.0, 9.0]) == []
    assert [named(ranks) for ranks in ([1], [0, 1], [0, 1, 4])] == ["rank 1", "ranks 0 and 1", "ranks 0, 1 and 4"]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_rank_goes_back_and_one_of_the_majority_says_why(rank: int) -> None:
    emit = Told()
    replicas = Replicas(model(), emit, rank, every=10)
    replicas.compare(20, [3.0, 3.0, 3.0])
    with pytest.raises(Setback, match="at step 21 rank 0 holds other weights than the majority"):
        replicas.compare(21, [4.0, 3.0, 3.0])
    told = [(e["kind"], e["suspect"], e["at_step"]) for e in emit.events if e["event"] == "anomaly"]
    assert told == [("replica", 0, 21)] * (rank == 1)
    assert emit.answers() == [answer(Kind.CORRUPTION, Decision.ROLL_BACK, 0)] * (rank == 1)
    two = Told()
    with pytest.raises(Setback, match="ranks 0 and 1 hold different weights; no majority says whose are right"):
        Replicas(model(), two, 0, every=10).compare(21, [4.0, 3.0])
    assert two.events[0]["suspect"] is None and two.answers() == [answer(Kind.CORRUPTION, Decision.ROLL_BACK)]


def test_a_digest_is_due_at_the_first_step_and_at_the_same_steps_in_every_run() -> None:
    replicas = Replicas(model(), Told(), 0, every=10)
    replicas.starts_at(23)
    due = []
    for step in range(23, 50):
        replicas.take(step)
        due += [step] if replicas.told() else []
    assert due == [23, 31, 41]
    never = Replicas(model(), Told(), 0, every=0)
    never.take(1)
    assert never.told() == {} and never.mine == 0
