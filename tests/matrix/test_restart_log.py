"""What the log of a restart says: what it restored, and how far its losses are from the undamaged run's."""

import math
import pathlib
from dataclasses import replace

import pytest
from simulator import Job, Logs, Outage, change, simulate, steps

from harness.evidence.restarts import Losses, Restart, apart, read_restart
from harness.matrix.restart_log import Came, answer

JOB = Job(nodes=2, steps=30, every=10)
NAN = math.nan


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({(0, 1): 2.0}, {(0, 1): 2.0}, 0.0),
        ({(0, 1): 2.0}, {(0, 1): 1.0}, 0.5),
        ({(0, 1): 1.0}, {(0, 1): -1.0}, 2.0),
        ({(0, 1): 2.0, (1, 1): 4.0}, {(0, 1): 2.0, (1, 1): 3.0}, 0.25),
        ({(0, 1): NAN}, {(0, 1): NAN}, None),
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
    trainers = simulate(JOB, (), 3).logs().trainers()
    logged = {(lines[0]["rank"], line["step"]): line["loss"] for lines in trainers for line in steps(lines)}
    assert found.losses == logged and len(logged) == 60


@pytest.mark.parametrize("fallback", [False, True])
def test_who_restored_twice_and_differently_has_no_one_step(fallback: bool, tmp_path: pathlib.Path) -> None:
    found = read(tmp_path, (Outage(after=15, kind="crash", victim=1),), fallback)
    assert found.step is None and found.failed_workers and found.tells
    assert found.told is fallback, "only a restore that passed a checkpoint over says so"
    assert {each["step"] for each in found.passed_over} == ({20} if fallback else set())


def test_a_folder_without_a_log_and_one_without_a_save_have_restored_nothing(tmp_path: pathlib.Path) -> None:
    assert read_restart(tmp_path) == Restart(None, False)
    silent = Restart(0, False, after(0, USUAL))
    assert answer(silent, 40, USUAL, 0.0, 4096, "", left=False).came is Came.FELL_BACK
    untold = answer(replace(silent, tells=False), 40, USUAL, 0.0, 4096, "", left=True)
    assert untold.came is Came.UNKNOWN, "it may have said why elsewhere"


USUAL = {(0, step): 1 / step for step in range(1, 61)}
WRONG = {key: loss + 9 for key, loss in USUAL.items()}


def after(step: int, losses: Losses) -> Losses:
    return {key: loss for key, loss in losses.items() if step < key[1] <= step + 5}


@pytest.mark.parametrize(
    ("step", "told", "losses", "came"),
    [
        (40, True, USUAL, Came.DETECTED),
        (40, True, WRONG, Came.WRONG),
        (40, False, WRONG, Came.SILENT),
        (20, True, USUAL, Came.FELL_BACK),
        (20, False, USUAL, Came.FELL_BACK),
        (20, True, WRONG, Came.WRONG),
        (20, False, WRONG, Came.SILENT),
        (0, True, USUAL, Came.FELL_BACK),
        (0, False, USUAL, Came.SCRATCH),
        (0, True, WRONG, Came.UNKNOWN),
    ],
)
def test_what_came_of_a_damage_is_said_with_a_look_at_the_losses(
    step: int, told: bool, losses: Losses, came: Came
) -> None:
    found = answer(Restart(step, told, after(step, losses)), 40, USUAL, 0.0, 4096, "", left=True)
    assert (found.came, found.step, found.judged) == (came, step, True)
    assert ("losses differ" in found.detail) is (losses is WRONG)


@pytest.mark.parametrize(("step", "came"), [(40, Came.DETECTED), (20, Came.FELL_BACK)])
def test_losses_that_are_not_told_are_said_to_be_not_judged(step: int, came: Came) -> None:
    found = answer(Restart(step, True), 40, USUAL, 0.0, 4096, "", left=True)
    assert (found.came, found.judged) == (came, False) and "not judged" in found.detail
    assert answer(Restart(step, True), 40, USUAL, 0.0, 4096, "it failed", left=True).came is Came.CRASHED
