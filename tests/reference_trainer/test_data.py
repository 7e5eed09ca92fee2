from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.data import Corpus, Samples, load_corpus, share
from reference_trainer.options import BadInput


def samples(length: int = 1000, context: int = 10, batch: int = 7, seed: int = 0) -> Samples:
    tokens = np.arange(length).astype(np.uint8)
    return Samples(Corpus(tokens, "digest", "test"), context, batch, seed)


@given(count=st.integers(1, 300), world=st.integers(1, 40))
def test_shares_tile_the_batch_and_differ_by_one_at_most(count: int, world: int) -> None:
    shares = [list(range(count)[share(count, rank, world)]) for rank in range(world)]
    assert [index for part in shares for index in part] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(batch=st.integers(1, 30), seed=st.integers(0, 5))
def test_an_epoch_reads_every_sample_once(batch: int, seed: int) -> None:
    data = samples(batch=batch, seed=seed)
    steps = -(-data.count // batch)
    order = np.concatenate([data.batch(step).indices for step in range(1, steps + 1)])[: data.count]
    assert sorted(order) == list(range(data.count))


def test_order_depends_on_seed_and_step_alone() -> None:
    first, second, other = samples(), samples(), samples(seed=1)
    for _ in range(3):
        second.batch(50)  # what was asked for before must not matter
    for step in (1, 2, 40):
        assert first.batch(step).digest == second.batch(step).digest
        assert first.batch(step).digest != other.batch(step).digest
    assert first.batch(1).first == 0
    assert first.batch(3).first == 14


def test_targets_are_the_bytes_that_follow() -> None:
    inputs, targets = samples().read(np.array([0, 3]), torch.device("cpu"))
    assert inputs[1].tolist() == list(range(30, 40))
    assert targets[1].tolist() == list(range(31, 41))


def test_default_text_needs_no_download_and_has_a_digest() -> None:
    corpus = load_corpus(None)
    assert len(corpus.tokens) > 10**6
    assert len(corpus.digest) == 64


def test_bad_data_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_corpus(str(tmp_path / "nothing"))
    with pytest.raises(BadInput, match="not a single byte"):
        load_corpus(str(tmp_path))
    (tmp_path / "short").write_text("abc")
    with pytest.raises(BadInput, match="3 bytes; one sample alone needs 11"):
        Samples(load_corpus(str(tmp_path / "short")), 10, 1, 0)
