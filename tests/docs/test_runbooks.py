"""Every command in a runbook is one that works, and every runbook has its parts."""

import pathlib
import re
import shlex
import shutil

import pytest
import yaml
from command_line import chaos

from harness.faults.contract import load_fault

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNBOOKS = [ROOT / "docs" / "runbooks" / f"F{number}.md" for number in range(1, 11)]
PARTS = ["Symptom", "First look", "Decision", "Command", "It is over when"]
CHEAP = {"show": {0}, "history": {0, 3}, "plan": {0}}  # 3: the objectives have too little evidence
LAUNCHES = {"run", "heal"}


def commands(path: pathlib.Path) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"^\$ (chaos .*)$", path.read_text(), re.M)]


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_a_runbook_has_all_its_parts_in_order(path: pathlib.Path) -> None:
    assert re.findall(r"^## (.*)$", path.read_text(), re.M) == PARTS


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_the_commands_of_a_runbook_work(
    path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "reports" / "sample", tmp_path / "sample")
    (tmp_path / "sample" / "plan.json").write_text("{}")  # what makes a folder a stored run
    monkeypatch.chdir(ROOT)
    found = commands(path)
    assert len(found) >= 5
    for name, *arguments in found:
        if name in LAUNCHES:
            assert all((ROOT / "scenarios" / f"{each}.yaml").is_file() for each in arguments)
            continue
        more = [] if name == "plan" else ["--reports", str(tmp_path)]
        done = chaos(name, *arguments, *more)
        assert done.exit_code in CHEAP[name], (name, arguments, done.output)


def test_the_rehearsal_of_a_runbook_has_one_of_its_faults() -> None:
    for path in RUNBOOKS:
        rehearsed = next(arguments[0] for name, *arguments in commands(path) if name == "run")
        scenario = yaml.safe_load((ROOT / "scenarios" / f"{rehearsed}.yaml").read_text())
        kinds = {fault["fault"] for fault in scenario["faults"]}
        assert path.name in {f"{load_fault(kind).runbook}.md" for kind in kinds}, (path.stem, kinds)


def test_alerts_point_to_runbooks_are_paged_or_ticketed_grouped_and_cool_down() -> None:
    rules = yaml.safe_load((ROOT / "examples" / "monitoring" / "alerts.yaml").read_text())["groups"][0]["rules"]
    for rule in rules:
        if "alert" in rule and "/docs/" in (link := rule["annotations"]["runbook_url"]):
            assert (ROOT / link.split("example.org/")[1]).is_file()
        assert "alert" not in rule or rule["labels"]["severity"] in ("page", "ticket")
    route = yaml.safe_load((ROOT / "examples" / "monitoring" / "alertmanager.yml").read_text())["route"]
    for each in (route, *route["routes"]):
        assert each["group_by"] and each["repeat_interval"]
