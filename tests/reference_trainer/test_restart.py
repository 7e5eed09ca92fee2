"""Restarts must not be visible in the losses, and must work at any moment."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import time

import pytest
from job import Job, Nursery

STEPS = 45


@pytest.mark.parametrize("ranks", [2, 4])
def test_killed_run_repeats_the_undisturbed_one_bit_for_bit(
    nursery: Nursery, tmp_path: pathlib.Path, ranks: int
) -> None:
    extra = ["--dropout", "0.1"]  # so that random states matter
    with Job(nursery, tmp_path / "fault-free", STEPS, *extra, nproc=ranks) as fault_free:
        fault_free.start("a")
        assert fault_free.code("a") == 0
    with Job(nursery, tmp_path / "killed", STEPS, *extra, nproc=ranks) as job:
        job.stop_after(17, 33)
        job.start("a")
        for step in (17, 33):
            job.wait_stopped(step)
            os.kill(job.workers("a")[ranks - 1], signal.SIGKILL)
            job.go_on(step)
            job.wait_for(lambda: job.seen("restored", rank=0)[-1]["step"] > 0, "restart")
        assert job.code("a") == 0
        restored = {event["step"] for event in job.seen("restored", rank=0)}
        assert len(restored) >= 2, "nothing was restored, so nothing was shown"
    assert job.losses() == fault_free.losses()
    assert len(fault_free.losses()) == STEPS


def test_survives_kills_at_any_moment(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    """Kills in start-up, restore, steps and background saves, some of them in quick succession."""
    chance = random.Random(7)
    with Job(nursery, tmp_path / "job", 400, "--checkpoint-every", "5", nproc=2) as job:
        job.start("a")
        job.wait_for_step(10)
        for _ in range(12):
            victim = chance.choice(list(job.workers("a").values()))
            until = time.monotonic() + chance.uniform(0, 0.5)
            with contextlib.suppress(ProcessLookupError):  # it may have died of the previous kill
                os.kill(victim, signal.SIGKILL)
            while time.monotonic() < until:
                time.sleep(0.001)
        assert job.code("a") == 0
        assert sorted(job.losses()) == list(range(1, 401))
        assert all(event["code"] in (0, 74, -9) for event in job.seen("worker.exit"))
