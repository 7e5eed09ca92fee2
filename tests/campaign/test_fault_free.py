"""When a fault-free run is taken from the cache, and when it is made anew."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from harness.campaign.fault_free import CACHE, fault_free_plans, forget_fault_free
from harness.errors import UsageError
from harness.plan.making import make_plan
from harness.plan.model import Plan
from harness.spec.scenario import parse_scenario


def plan_of(**trainer: list[str]) -> Plan:
    scenario = {
        "version": 1,
        "name": "mine",
        "title": "A trainer of one's own",
        "workload": {"trainer": {"command": ["{python}", "train.py"], **trainer}, "nodes": 3, "min_nodes": 2},
        "faults": [{"id": "kill", "fault": "rank_kill", "when": {"step": 5}, "target": {"rank": 0}}],
    }
    return make_plan(parse_scenario(yaml.safe_dump(scenario), "mine.yaml"), 1, "local", "mine-1")


def places(plan: Plan, reports: pathlib.Path) -> list[pathlib.Path]:
    return [reports / CACHE / other.outcome_digest() for other in fault_free_plans(plan).values()]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "store.py", "config.yaml", "other.py"):
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.mark.parametrize("changed", ["train.py", "store.py", "config.yaml"])
def test_a_changed_trainer_is_compared_with_a_new_fault_free_run(folder: pathlib.Path, changed: str) -> None:
    plan = plan_of(control=["{python}", "store.py"], digest=["config.yaml"])
    before = plan.outcome_digest()
    (folder / "other.py").write_text("2")
    assert plan.outcome_digest() == before
    (folder / changed).write_text("2")
    assert plan.outcome_digest() != before


def test_a_file_that_is_not_there_is_named(folder: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"workload\.trainer\.digest: 'model\.py' is not a file"):
        plan_of(digest=["model.py"]).outcome_digest()


def test_a_shell_line_as_long_as_a_script_names_no_file(folder: pathlib.Path) -> None:
    plan_of(control=["bash", "-c", "sleep 1; " * 1000]).outcome_digest()


def test_forgotten_fault_free_runs_are_those_of_this_plan(folder: pathlib.Path) -> None:
    plan, of_another = plan_of(), plan_of(digest=["other.py"])
    mine, others = places(plan, folder), places(of_another, folder)
    for place in (*mine, *others):
        place.mkdir(parents=True)
    forget_fault_free(plan, folder)
    assert len(mine) == 2 and not any(place.exists() for place in mine)
    assert all(place.exists() for place in others)
    forget_fault_free(plan, folder)  # nothing is cached now: nothing to do
