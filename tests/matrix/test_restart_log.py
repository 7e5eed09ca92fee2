"""What the log of a restart says: what it restored, and how far its losses are from the undamaged run's."""

from __future__ import annotations

import math
import pathlib

import pytest
from simulator import Job, Logs, Outage, change, simulate, steps

from harness.matrix.restart_log import Losses, Restart, apart, read_restart

JOB = Job(nodes=2, steps=30, every=10)
NAN = math.nan


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({(0, 1): 2.0}, {(0, 1): 2.0}, 0.0),
        ({(0, 1): 2.0}, {(0, 1): 1.0}, 0.5),
        ({(0, 1): 1.0}, {(0, 1): -1.0}, 2.0),
        ({(0, 1): 2.0, (1, 1): 4.0}, {(0, 1): 2.0, (1, 1): 3.0}, 0.25),
        ({(0, 1): NAN}, {(0, 1): NAN}, 0.0),
        ({(0, 1): NAN}, {(0, 1): 1.0}, math.inf),
        ({(0, 1): math.inf}, {(0, 1): 1.0}, math.inf),
        ({(0, 1): 1.0}, {(0, 2): 1.0}, None),
        ({(0, 1): 1.0}, {(1, 1): 1.0}, None),
    ],
)
def test_losses_are_compared_where_both_have_one(one: Losses, other: Losses, expected: float | None) -> None:
    assert apart(one, other) == apart(other, one) == expected


def read(folder: pathlib.Path, outages: tuple[Outage, ...] = (), fallback: bool = False) -> Restart:
    history = simulate(JOB, outages, seed=3)
    logs: Logs = history.logs()
    change((line for line in logs.all("restored") if fallback), fallback=[{"step": 20, "reason": "checksum"}])
    history.write(folder, logs)
    return read_restart(folder)


def test_without_a_word_the_first_step_says_what_was_restored(tmp_path: pathlib.Path) -> None:
    found = read(tmp_path)
    assert found.step == 0 and not found.told and not found.failed_workers
    logged = {
        (lines[0]["rank"], line["step"]): line["loss"]
        for lines in simulate(JOB, (), 3).logs().trainers()
        for line in steps(lines)
    }
    assert found.losses == logged and len(logged) == 60


@pytest.mark.parametrize("fallback", [False, True])
def test_who_restored_twice_and_differently_has_no_one_step(fallback: bool, tmp_path: pathlib.Path) -> None:
    found = read(tmp_path, (Outage(after=15, kind="crash", victim=1),), fallback)
    assert found.step is None and found.failed_workers
    assert found.told is fallback, "only a restore that passed a checkpoint over says so"


def test_a_folder_without_a_log_has_restored_nothing(tmp_path: pathlib.Path) -> None:
    assert read_restart(tmp_path) == Restart(None, False)
