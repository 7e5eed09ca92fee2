"""What a run is compared with: the fault-free run that was kept, or a new one where that is of another day."""

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
from harness.campaign.campaign_observers import CampaignObserver, Stage
from harness.errors import BackendError
from harness.judge.facts.evidence import load_evidence
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
    """Runs that cost nothing. The first fault-free one is the one that was kept; `paces` are their step times in ms."""

    def __init__(self, reports: pathlib.Path, paces: list[int], ended: str):
        self.reports, self.paces, self.ended = reports, list(paces), ended
        self.kept, self.renewed = True, 0

    def ensure_fault_free(self, plan: Plan, *_: object, anew: bool, repeat: int) -> tuple[pathlib.Path, Outcome | None]:
        self.renewed += anew
        job = Job(nodes=2, steps=80, every=100, step_ms=self.paces.pop(0))
        folder = simulate(job, (), 99).write(self.reports / f"kept-{len(self.paces)}")
        outcome = None if self.kept else Outcome(self.ended, "")
        self.kept = False
        return folder, outcome

    def execute(self, plan: Plan, run_dir: pathlib.Path, *_: object) -> Outcome:
        history = simulate(JOB, seed=1)
        logs = expecting(history.logs(), ASKED)
        slowed(logs, 40, 60, 1.01, healed=10**9)
        history.write(run_dir, logs)
        return Outcome("completed", "")


class Watching(CampaignObserver):
    def __init__(self) -> None:
        self.heard: list[tuple[Stage, str]] = []
        self.noted: list[str] = []

    def note(self, text: str) -> None:
        self.noted.append(text)

    def stage_ended(self, stage: Stage, how: str) -> None:
        self.heard.append((stage, how))


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_scenario(yaml.safe_dump(SCENARIO), "slow.yaml"), 1, "local", "slow-1")


def rehearsed(
    plan: Plan, reports: pathlib.Path, paces: list[int], monkeypatch: pytest.MonkeyPatch, ended: str = "completed"
) -> tuple[Verdict, bool, Pretended, Watching]:
    pretended, said = Pretended(reports, paces, ended), Watching()
    for name in ("ensure_fault_free", "execute"):
        monkeypatch.setattr(experiment, name, getattr(pretended, name))
    backend: Any = None
    run_dir, interrupted = experiment.run_experiment(plan, reports, backend, said)
    return judge(load_evidence(run_dir), "slow-1").verdict, interrupted, pretended, said


@pytest.mark.parametrize("kept", [20, 90])
def test_a_fault_free_run_of_a_quieter_or_a_busier_day_is_made_once_more(
    plan: Plan, tmp_path: pathlib.Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, interrupted, pretended, said = rehearsed(plan, tmp_path, [kept, 48], monkeypatch)
    assert (found, interrupted, pretended.renewed, pretended.paces) == (Verdict.PASS, False, 1, [])
    assert said.heard == [
        (Stage("fault-free run", 2), "cached"),
        (Stage("run with faults", 2), "completed"),
        (Stage("fault-free run", 2, again=True), "completed"),
    ]


def test_a_fault_free_run_of_the_same_pace_is_kept(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, pretended, _ = rehearsed(plan, tmp_path, [48, 1], monkeypatch)
    assert (found, pretended.renewed, pretended.paces) == (Verdict.PASS, 0, [1])


def test_a_host_that_changes_its_mind_is_not_asked_for_ever(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _, pretended, _ = rehearsed(plan, tmp_path, [90, 91, 92], monkeypatch)
    assert (found, pretended.renewed, pretended.paces) == (Verdict.INCONCLUSIVE, 1, [92])


@pytest.mark.parametrize(("ended", "stopped"), [("interrupted", True), ("failed", False)])
def test_a_fault_free_run_that_does_not_complete_takes_no_place(
    plan: Plan, tmp_path: pathlib.Path, ended: str, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, interrupted, pretended, said = rehearsed(plan, tmp_path, [90, 48], monkeypatch, ended)
    assert (found, interrupted, pretended.paces) == (Verdict.INCONCLUSIVE, stopped, [])
    assert said.heard[-1] == (Stage("fault-free run", 2, again=True), ended)
    assert not (tmp_path / "kept-0").exists()


def test_a_run_keeps_its_fault_free_run_whatever_another_run_does_to_the_cache(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Pretended.execute

    def beside_another(self: Pretended, *arguments: Any) -> Outcome:
        shutil.rmtree(tmp_path / "kept-0")
        return execute(self, *arguments)

    monkeypatch.setattr(Pretended, "execute", beside_another)
    found, _, _, _ = rehearsed(plan, tmp_path, [48], monkeypatch)
    assert found is Verdict.PASS
    assert list((tmp_path / ".fault-free").iterdir()) == []


def test_copies_that_the_job_has_changed_are_not_used(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Pretended.execute

    def forging(self: Pretended, *arguments: Any) -> Outcome:
        for log in (tmp_path / ".fault-free").glob("*/fault-free/events/**/*.jsonl"):
            with log.open("a") as file:
                file.write("forged")
        return execute(self, *arguments)

    monkeypatch.setattr(Pretended, "execute", forging)
    found, _, pretended, _ = rehearsed(plan, tmp_path, [48, 48], monkeypatch)
    assert (found, pretended.renewed) == (Verdict.PASS, 1)
    forged = tmp_path / "slow-1" / "fault-free" / "events"
    assert "forged" not in "".join(log.read_text() for log in forged.glob("**/*.jsonl"))


def test_a_renewal_that_breaks_costs_no_finished_result(
    plan: Plan, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure = Pretended.ensure_fault_free

    def broken(self: Pretended, *arguments: Any, anew: bool, repeat: int) -> Any:
        if anew:
            raise BackendError("the nodes cannot be had")
        return ensure(self, *arguments, anew=anew, repeat=repeat)

    monkeypatch.setattr(Pretended, "ensure_fault_free", broken)
    found, interrupted, _, said = rehearsed(plan, tmp_path, [90], monkeypatch)
    assert (found, interrupted) == (Verdict.INCONCLUSIVE, False)
    assert (tmp_path / "slow-1" / "fault-free").is_dir()
    assert said.noted == ["The fault-free runs could not be repeated: the nodes cannot be had"]
