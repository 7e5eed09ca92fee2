"""What workers were told of their places is compared before they join."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.distributed as dist

from reference_trainer.train import WrongPlace, claim_place

Claim = Callable[[int, int, int, int], None]


@pytest.fixture
def claim(monkeypatch: pytest.MonkeyPatch) -> Claim:
    store = dist.HashStore()

    def claim(node: int, local_rank: int, rank: int, world_size: int) -> None:
        monkeypatch.setenv("GROUP_RANK", str(node))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        claim_place(store, rank, world_size)

    return claim


def test_places_that_fit_are_taken(claim: Claim) -> None:
    for rank in (3, 0, 2, 1):
        claim(rank // 2, rank % 2, rank, 4)


def test_whoever_comes_second_to_a_rank_names_the_first(claim: Claim) -> None:
    claim(0, 0, 0, 2)
    with pytest.raises(WrongPlace, match="rank 0: worker 0 of node 1 and worker 0 of node 0"):
        claim(1, 0, 0, 2)


def test_another_idea_of_the_world_is_named(claim: Claim) -> None:
    claim(0, 0, 0, 2)
    with pytest.raises(WrongPlace, match=r"worker 0 of node 1 is told of 3 ranks, others of 2 \(worker 0 of node 0\)"):
        claim(1, 0, 1, 3)
