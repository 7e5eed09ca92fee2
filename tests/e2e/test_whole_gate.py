"""A whole gate, for real, by the steps of action.yml in a repository of somebody else, in an empty environment: the
shipped blindness check is caught, a short scenario passes, the answer is yes. The installed copy finds its run again."""

import json
import pathlib

import action_steps
import pytest
from cli.test_wheel import call, environment, tracked
from e2e.chaos_cli import NAME, ROOT, leftovers
from machine import CHILDREN


@pytest.mark.wheel
def test_the_gate_catches_its_blindness_check_and_says_yes(
    short: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, action = tmp_path / "work", tmp_path / "action"
    for folder in (work, action):
        folder.mkdir()
    short.rename(work / short.name)
    check = (ROOT / "scenarios" / "suites" / "blindness-check.yaml").read_text()
    (work / "blindness-check.yaml").write_text(check.replace("\nworkload:\n", "\nworkload:\n  restore_drill: false\n"))
    (work / "suite.yaml").write_text("version: 1\nname: tiny\ntitle: A tiny gate\nscenarios: [./short.yaml]\n")
    for name, value in {"NO_INDEX": "1", "NO_DEPS": "1", "NO_BUILD_ISOLATION": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)  # what the harness depends on is there already
    monkeypatch.setenv("PYTHONPATH", CHILDREN)
    for name in ("CHAOS_REPORTS", "CHAOS_SCENARIOS"):
        monkeypatch.delenv(name, raising=False)
    programs = environment(tmp_path)
    done = action_steps.run(work, tmp_path, programs, {"suite": "suite.yaml", "python-version": ""}, tracked(action))
    assert done.code == 0, done.out
    (folder,) = (work / "reports").glob("tiny-*")
    answer = json.loads((folder / "suite.json").read_text())
    assert answer["verdict"] == "pass" and answer["blindness_check"]["verdict"] == "fail"
    assert "resumed from step 0 and gave no reason" in answer["blindness_check"]["reasons"][0]
    assert done.outputs == "verdict=pass\n" and "YES" in done.summary and "\n::" not in done.out
    kept = [work / path for path in done.used["actions/cache"]["path"].split()]
    assert all(list(path.iterdir()) for path in kept), "fault-free runs, and the key of their seals"
    assert [*done.used] == ["actions/cache", "actions/upload-artifact"]
    assert leftovers(NAME, "blindness-check") == []
    listed = json.loads(call(programs / "chaos", "runs", "--json", cwd=work).stdout)
    (run_id,) = (run["run_id"] for run in listed if (run["scenario"], run["verdict"]) == (NAME, "pass"))
    for command in ("show", "score"):
        called = call(programs / "chaos", command, run_id, cwd=work)
        assert called.returncode == 0 and "PASS" in called.stdout, called.stderr
