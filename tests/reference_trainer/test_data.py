"""Which sample is in which batch, whoever reads it; and shards that are damaged or go away while a job trains."""

import atexit
import contextlib
import functools
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job import Job, Nursery, completed

from reference_trainer.data import BLOCK_BYTES, BadShard, Batch, Corpus, Loader, Samples, load_corpus, share
from reference_trainer.options import BadInput
from reference_trainer.train import EXIT_STOPPED


@functools.cache
def corpus(length: int = 1000, shards: int = 3) -> Corpus:
    """Bytes that count up, in some files."""
    folder = tempfile.mkdtemp(prefix="chaos-data-")
    atexit.register(shutil.rmtree, folder)
    text, size = bytes(number % 256 for number in range(length)), -(-length // shards)
    for number in range(shards):
        (pathlib.Path(folder) / f"{number}").write_bytes(text[number * size : (number + 1) * size])
    return load_corpus(folder)


def samples(length: int = 1000, context: int = 10, batch: int = 7, seed: int = 0) -> Samples:
    return Samples(corpus(length), context, batch, seed)


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


def test_targets_are_the_bytes_that_follow_and_the_text_that_comes_with_it_needs_no_download() -> None:
    inputs, targets = samples().read(np.array([0, 3]))
    assert (inputs[1].tolist(), targets[1].tolist()) == ([*range(30, 40)], [*range(31, 41)])
    found = load_corpus(None)
    assert found.size > 10**6 and len(found.digest) == 64


def test_bad_data_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_corpus(str(tmp_path / "nothing"))
    with pytest.raises(BadInput, match="not a single byte"):
        load_corpus(str(tmp_path))
    (tmp_path / "short").write_text("abc")
    with pytest.raises(BadInput, match="3 bytes; one sample alone needs 11"):
        Samples(load_corpus(str(tmp_path / "short")), 10, 1, 0)


@given(begin=st.integers(0, 2999), length=st.integers(1, 3000), shards=st.integers(1, 7))
def test_what_is_read_is_the_text_wherever_shards_end(begin: int, length: int, shards: int) -> None:
    end = min(begin + length, 3000)
    assert corpus(3000, shards).read(begin, end) == bytes(number % 256 for number in range(begin, end))


def damaged(folder: pathlib.Path) -> tuple[Samples, pathlib.Path]:
    """Two shards of which the first is good, and the file of the other."""
    for name in "ab":
        (folder / name).write_bytes(bytes(3 * BLOCK_BYTES))
    return Samples(load_corpus(str(folder)), 10, 4, 0), folder / "b"


@pytest.mark.parametrize("how", ["gone", "short", "garbage"])
def test_a_bad_shard_is_never_trained_on(how: str, tmp_path: pathlib.Path) -> None:
    data, file = damaged(tmp_path)
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "short" else bytes(2 * BLOCK_BYTES) + b"x" * BLOCK_BYTES)
    with pytest.raises(BadShard, match={"gone": "No such file", "short": "shorter", "garbage": "not what"}[how]):
        data.read(np.array([data.count - 1]))
    data.read(np.array([0]))


@contextlib.contextmanager
def loading(
    data: Samples, ahead: int, patience_s: float = 0, tell: Any = pytest.fail, first: int = 1
) -> Iterator[Loader]:
    loader = Loader(data, slice(2, 5), first, ahead, patience_s, tell)
    yield loader
    loader.close()


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_loader_gives_each_rank_its_part_of_each_batch_in_order(ahead: int) -> None:
    data = samples()
    with loading(data, ahead, first=4) as loader:
        for step in range(4, 30):
            loaded = loader.take()
            inputs, targets = data.read(data.batch(step).indices[2:5])
            assert loaded.batch.digest == data.batch(step).digest
            assert loaded.inputs.equal(inputs) and loaded.targets.equal(targets)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_loader_reads_that_many_batches_ahead_and_no_more(ahead: int) -> None:
    read = list[int]()

    class Noting(Samples):
        def batch(self, step: int) -> Batch:
            read.append(step)
            return super().batch(step)

    with loading(Noting(corpus(), 10, 7, 0), ahead) as loader:
        loader.take()
        loader.take()
        loader.close()
        loader._thread.shutdown(wait=True)
    assert read == list(range(1, len(read) + 1)) and 2 <= len(read) <= 2 + ahead


def test_a_closed_loader_waits_for_no_shard(tmp_path: pathlib.Path) -> None:
    data, file = damaged(tmp_path)
    file.unlink()
    told = threading.Event()
    with loading(data, 3, 3600, lambda text: told.set()) as loader:
        threading.Thread(target=lambda: told.wait() and loader.close(), daemon=True).start()  # type: ignore[func-returns-value]
        with pytest.raises((BadShard, CancelledError)):
            for _ in range(9):
                loader.take()


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_shard_that_comes_back_in_time_costs_nothing_but_time(ahead: int, tmp_path: pathlib.Path) -> None:
    data, file = damaged(tmp_path)
    kept, told = file.rename(tmp_path.parent / f"kept-{tmp_path.name}"), list[str]()

    def tell(text: str) -> None:
        told.append(text)
        kept.rename(file)

    with loading(data, ahead, 30, tell) as loader:
        for _ in range(9):
            assert len(loader.take().inputs) == 2
        assert not loader.waits_for_shard
    assert len(told) == 1 and "waits for data" in told[0] and str(file) in told[0]


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_shard_that_stays_away_ends_it_with_the_reason(ahead: int, tmp_path: pathlib.Path) -> None:
    data, file = damaged(tmp_path)
    file.unlink()
    given_up = pytest.raises(BadShard, match="b: No such file or directory; given up after 0 s")
    with loading(data, ahead, tell=lambda text: None) as loader, given_up:
        for _ in range(9):
            loader.take()


STEPS = 400
AWAY_S = 8.0
HANG_FLOOR_S = "5"  # the watchdog would call so long a wait a hang; no step takes so long, not on a busy machine


def shards(folder: pathlib.Path, count: int = 4) -> pathlib.Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}").write_bytes(bytes((number + at * at) % 251 for at in range(20_000)))
    return folder


def options(data: pathlib.Path, patience_s: str = "600") -> list[str]:
    return ["--data", str(data), "--data-patience-s", patience_s, "--hang-floor-s", HANG_FLOOR_S]


def test_a_shard_that_comes_back_costs_time_and_nothing_else(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    data = shards(tmp_path / "data")
    whole = completed(nursery, tmp_path / "whole", STEPS, *options(data), nproc=2).losses()
    with Job(nursery, tmp_path / "lost", STEPS, *options(data), nproc=2) as lost:
        lost.stop_after(50)
        lost.start("a")
        lost.wait_stopped(50)
        kept = (data / "2").rename(tmp_path / "kept")
        (data / "2").write_bytes(bytes(20_000))
        lost.go_on(50)
        lost.wait_for(lambda: lost.seen("anomaly", kind="data"), "word of the shard")
        time.sleep(AWAY_S)
        back_ns = time.monotonic_ns()
        kept.rename(data / "2")
        assert lost.code("a") == 0, lost.output()
        assert len(lost.seen("started")) == 2, "nobody had to start again"
        assert not lost.seen("anomaly", kind="hang")
        assert str(data / "2") in lost.seen("anomaly", kind="data")[0]["detail"]
        slowest = max(lost.seen("step"), key=lambda event: event["data_ns"])
        waits_since = slowest["begin_ns"]  # the batches before it had been loaded already
        assert slowest["data_ns"] > (back_ns - waits_since) / 2, "the wait is booked as a wait for data"
        assert lost.losses() == whole


def test_a_shard_that_stays_away_stops_the_job_with_the_reason(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    data = shards(tmp_path / "data")
    with Job(nursery, tmp_path / "lost", STEPS, *options(data, "8"), nproc=2) as lost:
        lost.stop_after(50)
        lost.start("a")
        lost.wait_stopped(50)
        (data / "1").unlink()
        lost.go_on(50)
        assert lost.code("a") == EXIT_STOPPED
        assert "data/1: No such file or directory; given up after 8 s" in lost.output()
        assert not lost.seen("anomaly", kind="hang")
