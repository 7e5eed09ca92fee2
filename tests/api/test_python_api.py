"""The Python API and the pytest plug-in, as another team's repository uses them."""

import json
import os
import pathlib
import re
import subprocess
import sys
import types
from unittest.mock import MagicMock

import pytest
import yaml
from small_jobs import light

from harness import api
from harness.backends.contract import load_backend
from harness.cli import new
from harness.errors import ChaosError, UsageError
from harness.faults.contract import Target

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = (
    f"COMMAND, ENV = {light(40)}, {{'PYTHONPATH': '{ROOT}'}}\n"
    """
import pytest

def test_survives(chaos):
    content = {
        "version": 1, "name": "own", "title": "A rank of our job is killed",
        "workload": {"nodes": 1, "steps": 40, "restore_drill": False, "trainer": {"command": COMMAND, "env": ENV}},
        "faults": [{"id": "kill", "fault": "rank_kill", "when": {"step": 25}, "target": {"rank": 0}}],
        "expect": {"loss_continuity": {"mode": "exact"}, "recovery_time": {"max": "10m"}, "pace": "off"},
    }
    result = chaos.run(content)
    assert result.passed, "\\n".join(result.reasons)
    assert result.page.is_file() and result.report.run.furthest_step == 40

@pytest.mark.chaos
def test_marked():
    raise AssertionError("it runs with --chaos only")

def test_of_words():
    pass
"""
)
FAILS = """
import pathlib
import types
from harness import api

def test_fails(chaos, monkeypatch):
    def run(scenario, **options):
        assert pathlib.Path(scenario).read_text() == "here"
        report = types.SimpleNamespace(much="much " * 1000, next_steps=("Again: chaos run --plan own-1",))
        return api.Result("fail", ("the first reason", "the second"), options["reports"] / "own-1", report)

    monkeypatch.setattr(api, "run", run)
    result = chaos.run("chaos/own.yaml")
    assert result.passed, "\\n".join(result.reasons)

def test_mistaken(chaos):
    chaos.run("chaos/nope.yaml")
"""
OTHERS = """
import pytest

@pytest.fixture
def chaos():
    return "of another kind"

def test_of_theirs(chaos):
    assert chaos == "of another kind"
"""


def pytest_in(folder: pathlib.Path, *words: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "harness.api.pytest_plugin", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.healthy
def test_a_team_tests_its_job_by_a_fixture(tmp_path: pathlib.Path) -> None:
    if not (capability := load_backend("local").probe()).available:
        pytest.skip(capability.summary)
    (tmp_path / "test_job.py").write_text(TESTS)
    out = pytest_in(tmp_path, "--chaos")
    assert "1 failed, 2 passed" in out and "it runs with --chaos only" in out, out
    (page,) = re.findall(r"^pass  (\S+/reports/own-\S+/report\.html)  \(test_job\.py::test_survives\)$", out, re.M)
    loaded = api.load(pathlib.Path(page).parent)
    assert loaded.passed and loaded.page == pathlib.Path(page) and loaded.report.scenario == "own"


@pytest.mark.slow
def test_a_failure_shows_all_reasons_and_none_of_our_code(tmp_path: pathlib.Path) -> None:
    """Paths are those of the root, though pytest is called below it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in (("tests/test_job.py", FAILS), ("chaos/own.yaml", "here")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    out = pytest_in(tmp_path / "tests", "--chaos")
    page = tmp_path / "reports" / "own-1" / "report.html"
    end = f"fail  {page}  (tests/test_job.py::test_fails)\n  - the first reason\n  - the second\n"
    end += f"  Next: Again: chaos run --plan own-1 --reports {tmp_path / 'reports'}\n"
    assert end in out and "where False = <fail: own-1>.passed" in out and "much much" not in out, out
    assert f"looked for {tmp_path / 'chaos' / 'nope.yaml'}" in out and "def _called" not in out, out
    assert "harness/api" not in out and out.count("UsageError: ") == 2, out


@pytest.mark.slow
def test_without_the_option_no_job_is_launched_and_a_mistake_is_an_error_with_its_words(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_job.py").write_text(TESTS)
    (tmp_path / "test_theirs.py").write_text(OTHERS)
    out = pytest_in(tmp_path, "-rs")
    assert "2 passed, 2 skipped" in out and "launches real jobs: pytest --chaos runs it" in out, out
    with pytest.raises(UsageError, match=r"unknown scenario 'spot-evcit' .*did you mean spot-evict"):
        api.run("spot-evcit", reports=tmp_path)
    with pytest.raises(UsageError, match="'nope'"):
        api.gate("nope", reports=tmp_path)
    with pytest.raises(ChaosError, match=r"report\.json"):
        api.load(tmp_path)


def test_a_command_takes_the_place_of_the_workload(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    asked = []
    monkeypatch.setattr(api, "_called", lambda words, *_: asked.append(words) or '{"runs": []}')
    with pytest.raises(ChaosError, match="without a run"):
        api.run("rank-kill", command=["torchrun", "--nproc-per-node", "2", "train.py", "--steps", "99"], reports="out")
    (written,) = (tmp_path / "out" / "scenarios").iterdir()
    assert [words[:-3] for words in asked] == [["run", str(written), "--backend", "local", "--seed", "1"]]
    content, shipped = (yaml.safe_load(path.read_text()) for path in (written, ROOT / "scenarios" / "rank-kill.yaml"))
    assert content["workload"] == {
        "trainer": {"torchrun": "../../train.py", "args": ["--steps", "99"], "env": {"OMP_NUM_THREADS": "1"}},
        "nodes": 2,
        "ranks_per_node": 1,
    }
    assert (content["faults"], content["expect"]) == (shipped["faults"], shipped["expect"])


def test_the_example_is_what_the_command_writes() -> None:
    folder = ROOT / "examples" / "plugin"
    stored = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    made = new.files("disk_nap")
    assert {name for name in stored if "__pycache__" not in name} == made.keys()
    for name, text in made.items():
        assert (folder / name).read_text() == text, f"make it again: chaos new fault disk_nap --folder {folder}"


@pytest.mark.parametrize("name", ["quick", "Restart_quick", "restart_newest", "restart__x"])
def test_a_guarantee_needs_a_name_of_its_own(name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match=r"no name of a guarantee|already"):
        new.guarantee(name, tmp_path / "new")


def test_a_log_is_bent_in_all_files_and_a_cut_line_stays(tmp_path: pathlib.Path) -> None:
    lines = ['{"mono_ns": 5, "wall_ns": 1005}', '{"event": "step", "mono_ns": 30, "begin_ns": 10}', '{"event": "st']
    logs = [tmp_path / "events" / name for name in ("node0/a.jsonl", "node1/b.jsonl")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("\n".join(lines))
    found: list[dict[str, object]] = []
    api.bend(tmp_path, lambda line: line.update(seen=len(found)) or found.append(line), event="step")
    assert [each["seen"] for each in found] == [0, 1]
    api.delay(tmp_path, 20, 7)
    first = logs[0].read_text().splitlines()
    step = {"event": "step", "mono_ns": 37, "begin_ns": 10, "seen": 0}
    assert [json.loads(line) for line in first[:2]] == [{"mono_ns": 5, "wall_ns": 1005}, step]
    assert first[2] == lines[2]
    api.delay(tmp_path, 0, 1)
    assert json.loads(logs[1].read_text().splitlines()[0])["wall_ns"] == 1006

    def numbered(names: str) -> str:
        return "".join(json.dumps({"line": at, "event": name}) + "\n" for at, name in enumerate(names))

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jsonl").write_text(numbered("hxsxxs"))
    api.bend(tmp_path / "other", dict.clear, event="x", logs="*")
    assert (tmp_path / "other" / "a.jsonl").read_text() == numbered("hss"), "an emptied line leaves no gap"


def test_what_it_measures_is_part_of_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("disk_nap")
    monkeypatch.setitem(sys.modules, "disk_nap", module)
    exec(compile(new.files("disk_nap")["chaos_disk_nap/fault.py"], "disk_nap", "exec", dont_inherit=True), vars(module))
    now, context = [0.0], MagicMock()
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    context.pid_of.return_value = (MagicMock(), 7)
    context.wait.side_effect = lambda seconds, until=None: now.append(now.pop() + (2.0 if until else seconds)) or True
    module.FAULT(duration="3s").inject([Target(0, 0)], context)
    assert now == [3.0]
