"""Suites of `chaos diagnose`: planned by the seed, run once, gone on with, and graded for each who answers."""

import json
import pathlib
from typing import Any

import pytest
from diagnosis.known_jobs import Job

from harness.diagnosis import suite
from harness.diagnosis.diagnose_command import diagnose
from harness.diagnosis.suite import load_runs
from harness.errors import ScenarioError, UsageError
from harness.run.stop import StopRequest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = """\
version: 1
name: small
title: Small
stacks:
  reference:
    workload: {trainer: reference, nodes: 3, steps: 60}
    answers: [told, {read: torchelastic, files: launcher}]
jobs:
  - {name: quiet, stack: reference}
  - name: kills
    stack: reference
    repeat: 3
    faults:
      - {id: kill, fault: rank_kill, when: {step: 10}, target: {rank: any}}
"""


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "small.yaml").write_text(SUITE)
    return tmp_path / "small.yaml"


def test_the_seed_draws_the_victims(small: pathlib.Path) -> None:
    def victims(seed: int) -> list[int | None]:
        return [each.targets[0].rank for run in load_runs(small, seed, "local")[1] for each in run.plan.faults]

    drawn = [victims(seed) for seed in range(20)]
    assert drawn == [victims(seed) for seed in range(20)] and all(len(each) == 3 for each in drawn)
    assert {rank for each in drawn for rank in each} == {0, 1, 2}


def test_the_shipped_suite_strikes_many_kinds_on_nodes_enough() -> None:
    _, runs = load_runs(ROOT / "scenarios" / "diagnosis" / "who-was-it.yaml", 1, "local")
    assert len({fault.kind for run in runs for fault in run.plan.faults}) >= 12
    assert all(run.plan.workload.nodes >= 3 and run.plan.workload.world_size >= 4 for run in runs)
    assert sum(not run.plan.faults for run in runs) >= 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("stack: reference}", "stack: other}"), r"9:\d+: jobs\.0\.stack: unknown stack 'other'"),
        (("rank_kill", "rank_kil"), r"14:\d+: .*rank_kil"),
        (("nodes: 3", "nodes: 0"), r":6:\d+: workload\.nodes"),
        (("name: kills", "name: quiet"), "two jobs have the same name"),
    ],
)
def test_a_mistake_is_told_at_its_place(change: tuple[str, str], said: str, small: pathlib.Path) -> None:
    small.write_text(SUITE.replace(*change))
    with pytest.raises((ScenarioError, UsageError), match=said):
        load_runs(small, 1, "local")


class Backend:
    def probe(self) -> Any:
        return None


def test_a_suite_goes_on_with_the_runs_that_are_missing(
    small: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def execute(plan: Any, folder: pathlib.Path, backend: Any, observer: Any, stop: StopRequest) -> None:
        made.append(plan.run_id)
        job = Job(nodes=3)
        if plan.faults:
            rank = plan.faults[0].targets[0].rank
            job.fault("rank_kill", rank, rank)
            job.die(rank, -9, 0.1)
        if len(made) == 2:  # the user stops the second one
            stop.ask()
        job.put("harness", "run.finished", 1, outcome="interrupted" if len(made) == 2 else "completed", reason="")
        job.write(folder)

    monkeypatch.setattr(suite, "execute", execute)
    monkeypatch.setattr(suite, "check_capabilities", lambda *_: None)
    monkeypatch.setattr("harness.diagnosis.diagnose_command.load_backend", lambda _: Backend())
    monkeypatch.setattr("harness.diagnosis.diagnose_command.stop", StopRequest())
    reports = small.parent / "reports"
    diagnose([str(small)], json=True, reports=reports)
    first = json.loads(capsys.readouterr().out)
    assert made == ["quiet-1-1", "kills-1-1"] and first["answerers"]["baseline"]["runs"] == 1 and first["planned"] == 4
    monkeypatch.setattr("harness.diagnosis.diagnose_command.stop", StopRequest())
    diagnose([str(small)], json=True, reports=reports)
    second = json.loads(capsys.readouterr().out)["answerers"]
    assert made == ["quiet-1-1", "kills-1-1", "kills-1-1", "kills-1-2", "kills-1-3"]
    assert second["baseline"]["all"]["recall"]["hits"] == 3 and second["told"]["all"]["recall"]["hits"] == 0
    assert second["torchelastic"]["runs"] == 4, "a run without such files has no answers"
    diagnose([str(small)], stored=True, reports=reports)
    assert len(made) == 5 and "Small: 4 of 4 runs, seed 1" in capsys.readouterr().out


def test_a_suite_says_itself_who_answers(small: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="leave out --answers and --read"):
        diagnose([str(small)], read="told")
    with pytest.raises(UsageError, match="no run of"):
        diagnose([str(small)], stored=True, reports=small.parent)
