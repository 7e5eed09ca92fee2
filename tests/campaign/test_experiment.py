"""What a run is compared with: the twin that was kept, or a new one where that is of another day."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest
import yaml
from judge.test_slowdown import JOB, slowed
from judging import expecting
from simulator import Job, simulate

from harness.campaign import experiment
from harness.judge.evidence import load_evidence
from harness.judge.score import Verdict, judge
from harness.plan.making import make_plan
from harness.plan.model import Plan
from harness.run.job import Outcome
from harness.spec.scenario import parse_scenario

ASKED = {"recovery_time": {"max": "30s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
SCENARIO = {
    "version": 1,
    "name": "slow",
    "title": "A node is slow",
    "workload": {"nodes": 2, "steps": 80},
    "faults": [{"id": "slow", "fault": "straggler", "when": {"step": 40}, "target": {"node": 1}, "duration": "1s"}],
}


class Pretended:
    """Twins and runs that cost nothing: the first twin is the one that was kept, `twins` are their step times in ms."""

    def __init__(self, reports: pathlib.Path, twins: list[int], ended: str):
        self.reports, self.twins, self.ended = reports, list(twins), ended
        self.kept, self.forgotten = True, 0

    def ensure_twin(self, plan: Plan, *_: object) -> tuple[pathlib.Path, Outcome | None]:
        job = Job(nodes=2, steps=80, every=100, step_ms=self.twins.pop(0))
        folder = simulate(job, (), 99).write(self.reports / f"twin-{len(self.twins)}")
        outcome = None if self.kept else Outcome(self.ended, "")
        self.kept = False
        return folder, outcome

    def execute(self, plan: Plan, run_dir: pathlib.Path, *_: object) -> Outcome:
        history = simulate(JOB, seed=1)
        logs = expecting(history.logs(), ASKED)
        slowed(logs, 40, 60, 1.01, healed=10**9)
        history.write(run_dir, logs)
        return Outcome("completed", "")

    def forget_twins(self, plan: Plan, reports: pathlib.Path) -> None:
        self.forgotten += 1


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_scenario(yaml.safe_dump(SCENARIO), "slow.yaml"), 1, "local", "slow-1")


def rehearsed(
    plan: Plan, reports: pathlib.Path, twins: list[int], monkeypatch: pytest.MonkeyPatch, ended: str = "completed"
) -> tuple[Verdict, bool, Pretended, list[str]]:
    pretended, said = Pretended(reports, twins, ended), list[str]()
    for name in ("ensure_twin", "execute", "forget_twins"):
        monkeypatch.setattr(experiment, name, getattr(pretended, name))
    backend: Any = None
    run_dir, interrupted = experiment.run_experiment(plan, reports, backend, lambda _: None, said.append)
    return judge(load_evidence(run_dir), "slow-1").verdict, interrupted, pretended, said


@pytest.mark.parametrize("kept", [20, 90])
def test_a_twin_of_a_quieter_or_a_busier_day_is_made_once_more(
    plan: Plan, tmp_path: pathlib.Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, interrupted, pretended, said = rehearsed(plan, tmp_path, [kept, 48], monkeypatch)
    assert (found, interrupted, pretended.forgotten, pretended.twins) == (Verdict.PASS, False, 1, [])
    assert said[-2:] == ["fault-free twin once more: the one that was kept went at another pace", "  completed"]


def test_a_twin_of_the_same_pace_is_kept(plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, pretended, _ = rehearsed(plan, tmp_path, [48, 1], monkeypatch)
    assert (found, pretended.forgotten, pretended.twins) == (Verdict.PASS, 0, [1])


def test_a_host_that_changes_its_mind_is_not_asked_for_ever(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, pretended, _ = rehearsed(plan, tmp_path, [90, 91, 92], monkeypatch)
    assert (found, pretended.forgotten, pretended.twins) == (Verdict.INCONCLUSIVE, 1, [92])


@pytest.mark.parametrize(("ended", "stopped"), [("interrupted", True), ("failed", False)])
def test_a_twin_that_does_not_complete_takes_no_place(
    plan: Plan, tmp_path: pathlib.Path, ended: str, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, interrupted, pretended, said = rehearsed(plan, tmp_path, [90, 48], monkeypatch, ended)
    assert (found, interrupted, pretended.twins) == (Verdict.INCONCLUSIVE, stopped, [])
    assert said[-1] == f"  {ended}" and not (tmp_path / "twin-0").exists()


def test_a_run_keeps_its_twin_whatever_another_run_does_to_the_cache(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Pretended.execute

    def beside_another(self: Pretended, *arguments: Any) -> Outcome:
        shutil.rmtree(tmp_path / "twin-0")
        return execute(self, *arguments)

    monkeypatch.setattr(Pretended, "execute", beside_another)
    found, _, _, _ = rehearsed(plan, tmp_path, [48], monkeypatch)
    assert found is Verdict.PASS
    assert list((tmp_path / ".twins").iterdir()) == []
