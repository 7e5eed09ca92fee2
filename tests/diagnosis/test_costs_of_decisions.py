"""GPU-hours that wrong decisions cost: only between runs of the same faults on the same victims."""

import pathlib

import pytest
from diagnosis.known_jobs import Job

from harness.diagnosis import costs
from harness.diagnosis.built_in import DIAGNOSERS
from harness.diagnosis.grading import RunGrade, grade_run
from harness.diagnosis.injected import truth_of_run
from harness.log import reading


def run(folder: pathlib.Path, decision: str, victim: int = 1) -> tuple[RunGrade, pathlib.Path]:
    """A rank is killed, and the job tells what it does about it."""
    job = Job()
    job.fault("rank_kill", victim, victim)
    job.put(job.agent(victim), "diagnosis", 0.2, kind="crash", who=[{"rank": victim}], decision=decision)
    truth = truth_of_run(folder.name, reading.read(job.write(folder) / "events"))
    return grade_run(truth, DIAGNOSERS["told"](truth, 1), 60 * 10**9), folder


@pytest.fixture(autouse=True)
def hours(monkeypatch: pytest.MonkeyPatch) -> None:
    wasted = {"wrong": 3.0, "right": 1.0, "right-2": 2.0}
    monkeypatch.setattr(costs, "_hours", lambda folder: wasted[folder.name])


def test_a_wrong_decision_beside_right_ones(tmp_path: pathlib.Path) -> None:
    wrong = run(tmp_path / "wrong", "evict-node")
    rights = [run(tmp_path / name, "restart-in-place") for name in ("right", "right-2")]
    assert costs.wasted_by_wrong_decisions([wrong, *rights]).startswith("+1.5000 in 1 comparison of 1 run ")


def test_without_a_pair_nothing_is_measured(tmp_path: pathlib.Path) -> None:
    wrong, right = run(tmp_path / "wrong", "evict-node"), run(tmp_path / "right", "restart-in-place", victim=2)
    for runs in ([wrong], [right], [wrong, right], []):
        assert costs.wasted_by_wrong_decisions(runs) == "not measured"
