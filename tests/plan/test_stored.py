"""A stored plan, read again: the same plan, or one clear message."""

import copy
import json
import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from harness.campaign.checked_files import find_plan, load_plan, load_scenario, score_bounds
from harness.cli import main as cli
from harness.cli import run as runs
from harness.errors import INTERRUPTED, ScenarioError, UsageError
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.plan.stored import VALUES_MAX, parse_plan

SCENARIOS = sorted((pathlib.Path(__file__).resolve().parents[2] / "scenarios").glob("*.yaml"))
TARGET = {"node_index": 1, "rank": 3}
SECRETIVE = {"command": ["x"], "env": {"API_KEY": "hunter22"}}
KILL = {"id": "kill", "fault": "rank_kill", "parameters": {"signal": "SIGKILL"}, "when": {"step": 50}}
DATA = {
    "version": 1,
    "run_id": "run-1",
    "seed": 7,
    "backend": "local",
    "scenario": {"name": "mine", "title": "Mine"},
    "workload": {"trainer": "reference", "nodes": 2, "ranks_per_node": 2, "steps": 100},
    "faults": [KILL | {"targets": [TARGET], "kills": True}],
    "expect": {"recovery_time": {"max": "60s"}},
    "abort": {"if_no_step_for_ns": 60 * 10**9, "wall_clock_ns": 600 * 10**9},
}


def fault(**told: Any) -> Callable[[Any], object]:
    return lambda data: data["faults"][0].update(told)


def changed(change: Callable[[Any], object]) -> str:
    data = copy.deepcopy(DATA)
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_plans_of_all_scenarios_are_read_as_they_were_written(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for profile in (None, *load_scenario(path).profiles):
        plan = make_plan(load_scenario(path, profile), 3, "local", "run-1", profile)
        (tmp_path / "plan.json").write_text(json.dumps(plan.to_json(), indent=2))
        assert load_plan(tmp_path / "plan.json") == plan


def test_a_plan_of_an_override_is_played_again_as_it_was(tmp_path: pathlib.Path) -> None:
    spec = load_scenario(SCENARIOS[0], None, {"workload": {"steps": 777}})
    plan = make_plan(spec, 3, "local", "run-1")
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    again = load_plan(tmp_path / "plan.json").again("run-2")
    assert again.workload.steps == 777
    assert again.to_json() == plan.to_json() | {"run_id": "run-2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("workload"), "p.json: workload: is missing"),
        (lambda data: data.update(version=2), "p.json: version: 2 is not allowed: it should be 1"),
        (lambda data: data.update(workloads={}), "p.json: workloads: unknown key; did you mean workload"),
        (lambda data: data["workload"].update(nodes=10**9), "p.json: workload.nodes: 1000000000 is not allowed"),
        (lambda data: data["workload"].update(nodes="two"), "p.json: workload.nodes: 'two' is not allowed"),
        (fault(fault="rank_kil"), "faults.0.fault: unknown fault 'rank_kil'; did you mean rank_kill"),
        (fault(parameters={"signal": "SIGHUP"}), "faults.0.signal: 'SIGHUP' is not allowed"),
        (fault(id="../x"), "faults.0.id: '../x': String should match pattern"),
        (lambda data: data["faults"].append(data["faults"][0]), "faults.1.id: 'kill' is already the id of another"),
        (fault(targets=[]), "faults.0: targets: none; name one at least"),
        (fault(targets=[TARGET | {"rank": 9}]), "faults.0.targets: fault kill: not all are a rank"),
        (fault(targets=[TARGET | {"rank": 0}]), "faults.0.targets: fault kill: not all are a rank"),
        (fault(targets=[TARGET | {"rank": None}]), "faults.0.targets: fault kill: not all are a rank"),
        (fault(when={"step": 100}), "faults.0.when: fault kill: step 100 is never reached"),
        (fault(when={"following": "kill"}), "follows 'kill', but this plan has no such other fault"),
        (fault(when={"after_ns": 2**70}), "faults.0.when.after_ns"),
        (lambda data: data.update(limits={"nodes_at_once": 0}), "limits.nodes_at_once: 0 is not allowed"),
        (lambda data: data.update(expect={"recovery": {}}), "expect.recovery: unknown score 'recovery'; did you mean"),
        (lambda data: data["expect"]["recovery_time"].update(max="60"), "recovery_time.max: '60' is not a duration"),
        (lambda data: data.update(seed=2**80), "seed: 1208925819614629174706176 is not allowed"),
        (lambda data: data.update(run_id="../../x"), "run_id: '../../x': String should match pattern"),
        (lambda data: data["workload"].update(trainer=SECRETIVE), "API_KEY looks like a secret"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(change: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_plan(changed(change), "p.json", score_bounds())
    assert message in str(caught.value)
    assert all(problem.startswith("p.json:") for problem in caught.value.problems)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "3", "{", '{"version": 1', '{"seed": NaN}', '"\\ud800"', "\0"),
        *('{"seed": ' + "9" * 9000 + "}", "[" * 100_000, "[" + "[]," * VALUES_MAX + "[]]"),
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_what_is_no_plan_is_one_clear_error(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^p\.json:"):
        parse_plan(text, "p.json")


def test_a_plan_is_found_by_its_file_by_its_folder_and_by_its_run(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "reports" / "mine-1"
    (run / "events").mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps(DATA))
    for name in (str(run / "plan.json"), str(run), "mine-1", "mine", "last"):
        assert load_plan(find_plan(name, tmp_path / "reports")) == Plan.from_json(DATA)
    with pytest.raises(UsageError, match="nope"):
        find_plan("nope", tmp_path / "reports")


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["chaos", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(str(ended.value.code))


def test_the_command_refuses_what_the_plan_holds_already(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(DATA))
    for more in (["--seed", "3"], ["rank-kill"], ["--backend", "docker"], ["--profile", "cluster"]):
        assert call(monkeypatch, "run", "--plan", str(tmp_path / "plan.json"), *more) == 2
        assert "a stored plan has its own" in capsys.readouterr().err
    assert call(monkeypatch, "run") == 2
    assert "name a scenario" in capsys.readouterr().err


def test_the_command_runs_the_plan_under_an_id_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Plan] = []

    def pretend(plans: Any, *_: object) -> Any:
        found.extend(plans)
        return [], True

    monkeypatch.setattr(runs, "run_repeatedly", pretend)
    monkeypatch.setattr(runs, "check_capabilities", lambda *_: None)
    monkeypatch.setattr(runs, "load_backend", lambda _: types.SimpleNamespace(probe=lambda: None))
    (tmp_path / "plan.json").write_text(json.dumps(DATA))
    assert call(monkeypatch, "run", "--plan", str(tmp_path / "plan.json"), "--repeat", "2") == INTERRUPTED
    assert len({plan.run_id for plan in found} | {"run-1"}) == 3
    assert all(plan.again("run-1") == Plan.from_json(DATA) for plan in found)


@pytest.mark.parametrize("words", [["run", "--plan"], ["plan"]])
def test_files_that_are_none_are_refused(
    words: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("plan.json" if "--plan" in words else "scenario.yaml")
    path.write_bytes(b"version: 1\n\xff\xfe\x00binary")
    assert call(monkeypatch, *words, str(path)) == 2
    assert f"{path.name}:2: cannot be read: it is not UTF-8 text" in capsys.readouterr().err
    path.unlink()
    os.mkfifo(path)
    assert call(monkeypatch, *words, str(path)) == 2
    assert "it is not a regular file" in capsys.readouterr().err


def test_a_title_with_markup_is_shown_as_it_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = {"version": 1, "name": "x", "title": "[red]x[/nope] [0-9]*"}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(scenario))
    assert call(monkeypatch, "plan", str(tmp_path / "x.yaml")) == 0
    assert call(monkeypatch, "list", "--scenarios", str(tmp_path)) == 0
    assert capsys.readouterr().out.count("[red]x[/nope] [0-9]*") == 2
