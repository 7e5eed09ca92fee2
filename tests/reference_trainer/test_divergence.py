"""A loss that leaves its course: all ranks decide alike, go back far enough, and leave out what they met there, once."""

import pathlib
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from told import Told, answer

from harness.log.truth import Decision, Kind
from harness.node.emitter import Emitter, abnormal
from reference_trainer.checkpoint import Checkpoints
from reference_trainer.data import Corpus, Samples, Shard
from reference_trainer.divergence import Divergence, Spike, merged
from reference_trainer.options import Options
from reference_trainer.train import SETBACKS_MAX, StoppedByPolicy, Worker

BATCH = 4


def samples() -> Samples:
    """Of a text that nobody reads here."""
    unread = Shard(pathlib.Path("nowhere"), begin=0, size=1000, sums=())
    return Samples(Corpus((unread,), "digest", "test"), 10, BATCH, seed=0)


def trained(divergence: Divergence, losses: list[float], first: int = 1) -> Spike:
    with pytest.raises(Spike) as found:
        for step, loss in enumerate(losses, first):
            divergence.step_done(step, loss, 1.0)
    return found.value


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_goes_back_and_one_of_them_tells(rank: int) -> None:
    emit, data = Told(), samples()
    divergence = Divergence(emit, rank, data, on=True)
    spike = trained(divergence, [2.0] * 30 + [9.0] * 3)
    assert (spike.at_step, spike.before) == (33, 30 - abnormal.SPIKE_MARGIN_STEPS)
    first, count = spike.left_out
    assert first == data.batch(30).first and count == abnormal.LEFT_OUT_STEPS * BATCH
    divergence.load({})
    divergence.gone_back(spike)
    assert data.left_out == [(first, count)]
    told = [(each["event"], each.get("at_step")) for each in emit.events]
    assert told == [("anomaly", 33), ("diagnosis", None), ("samples.left_out", 33)] * (rank == 0)
    assert emit.answers() == [answer(Kind.BAD_DATA, Decision.ROLL_BACK)] * (rank == 0)


def going_back(checkpoint_there: bool = True) -> Worker:
    worker = Worker(Options(), Told(), rank=0, local_rank=0, world_size=1)
    worker.watchdog = worker.optimizer = worker.divergence = worker.loader = MagicMock()
    worker.checkpoints = MagicMock(**{"forget_after.return_value": checkpoint_there})
    worker.restore = lambda: 20  # type: ignore[method-assign]
    worker.step = 33
    return worker


def test_so_often_and_no_more_it_goes_back_without_getting_further_and_only_to_a_checkpoint() -> None:
    worker = going_back()
    spike = Spike("loss 9", before=25, at_step=33, left_out=(0, 1))
    for _ in range(SETBACKS_MAX):
        worker.go_back(spike)
    with pytest.raises(StoppedByPolicy, match="loss 9; this was setback 4 without getting past step 33"):
        worker.go_back(spike)
    worker.step = 34
    worker.go_back(spike)
    with pytest.raises(StoppedByPolicy, match="loss 9; no checkpoint of step 25 or before is there to go back to"):
        going_back(checkpoint_there=False).go_back(spike)


def test_nothing_is_done_where_it_is_not_asked_for() -> None:
    divergence = Divergence(Told(), 0, samples(), on=False)
    for step in range(1, 99):
        divergence.step_done(step, 2.0 if step < 50 else float("nan"), 1.0)


def test_a_restart_knows_what_is_usual_and_what_was_left_out() -> None:
    data, again = samples(), samples()
    divergence = Divergence(Told(), 0, data, on=True)
    divergence.gone_back(trained(divergence, [2.0] * 30 + [9.0] * 3))
    divergence.load({"usual": {"losses": [2.0] * 25, "norms": [1.0] * 25}, "left_out": data.left_out})
    restarted = Divergence(Told(), 0, again, on=True)
    restarted.load(divergence.state())
    assert again.left_out == data.left_out
    assert trained(restarted, [9.0] * 3, first=31).at_step == 33
    divergence.load({})
    assert data.left_out == again.left_out, "an older checkpoint does not bring samples back"


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 20))
def test_every_place_is_consumed_once_but_for_those_left_out(starts: list[int], length: int) -> None:
    data = samples()
    data.left_out = merged([(start * BATCH, length * BATCH) for start in starts])
    missing = {place for first, count in data.left_out for place in range(first, first + count)}
    firsts = [data.batch(step).first for step in range(1, 60)]
    consumed = [place for first in firsts for place in range(first, first + BATCH)]
    assert consumed == [place for place in range(10**4) if place not in missing][: len(consumed)]


def test_checkpoints_of_the_spike_are_gone_and_the_last_good_one_is_never_deleted(
    tmp_path: pathlib.Path, one_rank: None
) -> None:
    checkpoints = Checkpoints(str(tmp_path), None, 5, Emitter(None))
    for step in (10, 20, 30):
        checkpoints.save("periodic", step, {"model/w": torch.ones(3), "rng": torch.zeros(1), "progress": "{}"})
        checkpoints.wait()
    assert not checkpoints.forget_after(9)
    assert checkpoints.restore().step == 30
    assert checkpoints.forget_after(20)
    assert checkpoints.restore().step == 20
