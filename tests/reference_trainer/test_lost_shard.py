"""A shard of the data that goes away while the job trains: the job waits for it, or stops and says why."""

from __future__ import annotations

import pathlib
import time

import pytest
from job import Job, Nursery

from reference_trainer.train import EXIT_STOPPED

STEPS = 400
AWAY_S = 8.0
HANG_FLOOR_S = "5"  # the watchdog would call so long a wait a hang; no step takes so long, not on a busy machine


def shards(folder: pathlib.Path, count: int = 4) -> pathlib.Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}").write_bytes(bytes((number + at * at) % 251 for at in range(20_000)))
    return folder


def job(nursery: Nursery, folder: pathlib.Path, data: pathlib.Path, *extra: str) -> Job:
    return Job(
        nursery,
        folder,
        STEPS,
        "--data",
        str(data),
        "--data-patience-s",
        "600",
        "--hang-floor-s",
        HANG_FLOOR_S,
        *extra,
        nproc=2,
    )


@pytest.mark.parametrize("how", ["missing", "garbage"])
def test_a_shard_that_comes_back_costs_time_and_nothing_else(
    how: str, nursery: Nursery, tmp_path: pathlib.Path
) -> None:
    data = shards(tmp_path / "data")
    with job(nursery, tmp_path / "whole", data) as whole:
        whole.start("a")
        assert whole.code("a") == 0, whole.output()
    with job(nursery, tmp_path / "lost", data) as lost:
        lost.stop_after(50)
        lost.start("a")
        lost.wait_stopped(50)
        kept = (data / "2").rename(tmp_path / "kept")
        if how == "garbage":
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
        whole.seen("step")
        assert lost.losses() == whole.losses()


def test_a_shard_that_stays_away_stops_the_job_with_the_reason(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    data = shards(tmp_path / "data")
    with job(nursery, tmp_path / "lost", data, "--data-patience-s", "8") as lost:
        lost.stop_after(50)
        lost.start("a")
        lost.wait_stopped(50)
        (data / "1").unlink()
        lost.go_on(50)
        assert lost.code("a") == EXIT_STOPPED
        assert "data/1: No such file or directory; given up after 8 s" in lost.output()
        assert not lost.seen("anomaly", kind="hang")
