"""What a run is compared with: the fault-free run that was kept, or a new one where that is of another day."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from judge.test_slowdown import JOB, ended, slowed
from judging import expecting
from simulator import Job, Outage, change, simulate
from whole import stretched

from harness.campaign import experiment
from harness.campaign.campaign_observers import CampaignObserver, Stage
from harness.errors import BackendError
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.judge.verdict import Verdict
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import Outcome
from harness.spec.scenario import parse_scenario

ASKED = {"recovery_time": {"max": "30s"}, "wasted_gpu_hours": {"max_percent_by_faults": 90}}
ENVELOPE = {"loss_continuity": {"mode": "envelope"}}
SCENARIO = {
    "version": 1,
    "name": "slow",
    "title": "A node is slow",
    "workload": {"nodes": 2, "steps": 80},
    "faults": [{"id": "slow", "fault": "straggler", "when": {"step": 40}, "target": {"node": 1}, "duration": "1s"}],
}


class Pretended:
    """Runs that cost nothing. The first fault-free one is the one that was kept; `paces` are their step times in ms."""

    def __init__(self, reports: pathlib.Path):
        self.reports, self.paces, self.ended = reports, list[int](), "completed"
        self.kept, self.renewed, self.broken, self.killed = True, 0, "", False
        self.meanwhile: Callable[[], object] = lambda: None

    def ensure_fault_free(
        self, plan: Plan, *_: object, anew: bool, repeat: int, **__: object
    ) -> tuple[pathlib.Path, Outcome | None]:
        if anew and self.broken:
            raise BackendError(self.broken)
        self.renewed += anew
        job = Job(nodes=2, steps=80, every=20 if self.killed else 100, step_ms=self.paces.pop(0))
        folder = simulate(job, (), 99).write(self.reports / f"kept-{len(self.paces)}")
        outcome = None if self.kept else Outcome(self.ended, "")
        self.kept = False
        return folder, outcome

    def execute(self, plan: Plan, run_dir: pathlib.Path, *_: object, **__: object) -> Outcome:
        self.meanwhile()
        outages = [Outage(37, "rank")] if self.killed else []
        history = simulate(replace(JOB, every=20) if self.killed else JOB, outages, seed=1)
        logs = expecting(history.logs(), ASKED)
        if self.killed:
            stretched(logs, ended(logs, 41, -1), ended(logs, 80, -1), 4.0)
        else:
            slowed(logs, 40, 60, 1.6, healed=10**9)
        history.write(run_dir, logs)
        return Outcome("completed", "")

    def rehearsed(self, *paces: int) -> tuple[Verdict, bool, Watching]:
        self.paces = [*paces]
        plan = make_plan(parse_scenario(yaml.safe_dump(SCENARIO), "slow.yaml"), 1, "local", "slow-1")
        backend: Any = None
        said = Watching()
        run_dir, interrupted = experiment.run_experiment(plan, self.reports, backend, said)
        return judge(load_evidence(run_dir), "slow-1").verdict, interrupted, said


class Watching(CampaignObserver):
    def __init__(self) -> None:
        self.heard: list[tuple[Stage, str]] = []
        self.noted: list[str] = []

    def note(self, text: str) -> None:
        self.noted.append(text)

    def stage_ended(self, stage: Stage, how: str) -> None:
        self.heard.append((stage, how))


@pytest.fixture
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    runs = Pretended(tmp_path)
    for name in ("ensure_fault_free", "execute"):
        monkeypatch.setattr(experiment, name, getattr(runs, name))
    return runs


@pytest.mark.parametrize(("pace", "how"), [(20, "cached"), (90, "cached"), (90, "completed")])
def test_a_fault_free_run_of_a_quieter_or_busier_time_is_made_once_more(runs: Pretended, pace: int, how: str) -> None:
    runs.kept = how == "cached"
    found, interrupted, said = runs.rehearsed(pace, 48)
    assert (found, interrupted, runs.renewed, runs.paces) == (Verdict.PASS, False, 1, [])
    assert said.heard == [
        (Stage("fault-free run", 2), how),
        (Stage("run with faults", 2), "completed"),
        (Stage("fault-free run", 2, again=True), "completed"),
    ]


def test_a_fault_free_run_of_a_busier_time_hides_no_job_that_is_slower_after_a_kill(runs: Pretended) -> None:
    runs.killed = True
    found, _, _ = runs.rehearsed(110, 48)
    assert (found, runs.renewed) == (Verdict.FAIL, 1)


@pytest.mark.parametrize(("ended", "stopped"), [("interrupted", True), ("failed", False)])
def test_a_fault_free_run_that_does_not_complete_takes_no_place(runs: Pretended, ended: str, stopped: bool) -> None:
    runs.ended = ended
    found, interrupted, said = runs.rehearsed(90, 48)
    assert (found, interrupted, runs.paces) == (Verdict.INCONCLUSIVE, stopped, [])
    assert said.heard[-1] == (Stage("fault-free run", 2, again=True), ended)
    assert not (runs.reports / "kept-0").exists()


def test_a_run_of_the_same_pace_keeps_its_fault_free_run_whatever_another_run_does_to_the_cache(
    runs: Pretended,
) -> None:
    runs.meanwhile = lambda: shutil.rmtree(runs.reports / "kept-1")
    found, _, _ = runs.rehearsed(48, 1)
    assert (found, runs.renewed, runs.paces) == (Verdict.PASS, 0, [1])
    assert list((runs.reports / ".fault-free").iterdir()) == []


def test_copies_that_the_job_has_changed_are_not_used(runs: Pretended) -> None:
    def forge() -> None:
        for log in (runs.reports / ".fault-free").glob("*/fault-free/events/**/*.jsonl"):
            with log.open("a") as file:
                file.write("forged")

    runs.meanwhile = forge
    found, _, _ = runs.rehearsed(48, 48)
    assert (found, runs.renewed) == (Verdict.PASS, 1)
    forged = runs.reports / "slow-1" / "fault-free" / "events"
    assert "forged" not in "".join(log.read_text() for log in forged.glob("**/*.jsonl"))


def test_a_renewal_that_breaks_costs_no_finished_result_and_is_not_asked_for_again(runs: Pretended) -> None:
    found, _, _ = runs.rehearsed(90, 91, 92)  # a host that changes its mind
    assert (found, runs.renewed, runs.paces) == (Verdict.INCONCLUSIVE, 1, [92])
    shutil.rmtree(runs.reports / "slow-1")
    runs.broken, runs.kept = "the nodes cannot be had", True
    found, interrupted, said = runs.rehearsed(90)
    assert (found, interrupted) == (Verdict.INCONCLUSIVE, False)
    assert (runs.reports / "slow-1" / "fault-free").is_dir()
    assert said.noted == ["The fault-free runs could not be repeated: the nodes cannot be had"]


class Losses(Pretended):
    """Fault-free runs of which each is off by `noise` more than the one before, and a run that is `off` at its end."""

    def __init__(self, reports: pathlib.Path, noise: float, off: float):
        super().__init__(reports)
        self.noise, self.off, self.made = noise, off, 0

    def ensure_fault_free(
        self, plan: Plan, *_: object, anew: bool, repeat: int, **__: object
    ) -> tuple[pathlib.Path, Outcome | None]:
        history = simulate(JOB, (), 99 + self.made)
        logs = history.logs()
        change(logs.steps(), loss=lambda line: line["loss"] + self.noise * self.made)
        self.made += 1
        return history.write(self.reports / f"kept-{self.made}", logs), Outcome("completed", "")

    def execute(self, plan: Plan, run_dir: pathlib.Path, *_: object, **__: object) -> Outcome:
        history = simulate(JOB, seed=1)
        logs = expecting(history.logs(), ENVELOPE)
        change(logs.steps(60), loss=lambda line: line["loss"] + self.off)
        history.write(run_dir, logs)
        return Outcome("completed", "")


@pytest.mark.parametrize(
    ("noise", "off", "made", "found"),
    [
        (0.0, 0.0, 3, Verdict.PASS),
        (1e-3, 1e-3, 3, Verdict.PASS),
        (1e-3, 0.5, 4, Verdict.FAIL),
        (0.0, 1e-6, 4, Verdict.FAIL),  # three repeats that are the same bit for bit leave no room
    ],
)
def test_a_run_outside_of_its_band_is_accused_by_three_fault_free_runs_and_not_by_two(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, noise: float, off: float, made: int, found: Verdict
) -> None:
    runs = Losses(tmp_path, noise, off)
    for name in ("ensure_fault_free", "execute"):
        monkeypatch.setattr(experiment, name, getattr(runs, name))
    plan = make_plan(parse_scenario(yaml.safe_dump(SCENARIO | {"expect": ENVELOPE}), "slow.yaml"), 1, "local", "slow-1")
    backend: Any = None
    said = Watching()
    run_dir, _ = experiment.run_experiment(plan, tmp_path, backend, said)
    card = judge(load_evidence(run_dir), "slow-1")
    line = next(each for each in card.expectations if each.name == "loss_continuity.mode")
    assert (runs.made, line.verdict) == (made, found), card.reasons
    assert len([text for text in said.noted if "outside of the band" in text]) == made - 3
