"""CI's two halves: what one skips the other runs, and what neither ran is told."""

import pathlib
import subprocess
import sys
from typing import Any

import halves
import outcomes
import pytest
import yaml

TOOLS = pathlib.Path(halves.__file__).parent
CONFTEST = """
import outcomes
pytest_addoption, pytest_configure = outcomes.add_options, outcomes.configure
def pytest_collection_modifyitems(config, items):
    outcomes.select(config, items)
    outcomes.plan(config, items, lambda item: "no engine" if "engine" in item.name else "")
"""
TESTS = """
import os, pytest
engine = pytest.mark.skipif("ENGINE" not in os.environ, reason="no engine")
def test_plain(): pass
@engine
def test_engine(): pass
@pytest.mark.skip(reason="nowhere")
def test_nowhere(): pass
def test_broken(): assert "MENDED" in os.environ
@pytest.mark.xfail
def test_expected(): assert False
"""
WHOLE_FILE = """
import os, pytest
if "ENGINE" not in os.environ: pytest.skip("no engine", allow_module_level=True)
def test_one(): pass
def test_two(): pass
"""
KNOWN: dict[str, Any] = {"not_run": [], "flaky": []}


def run(folder: pathlib.Path, *options: str, **env: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    paths = {"PYTHONPATH": str(TOOLS), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=paths | env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text(WHOLE_FILE)
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def test_the_second_half_runs_what_is_skipped_and_nothing_else(project: pathlib.Path) -> None:
    """It begins with what the first one plans, and ends with what that did not foresee."""
    planned, first, second = (project / f"{name}.jsonl" for name in ("planned", "first", "second"))
    run(project, "-n2", f"--outcomes={first}", f"--planned={planned}")
    run(project, "-n2", f"--outcomes={second}", f"--skipped-in={planned}", ENGINE="1")
    begun = outcomes.read(second)
    assert {(each["test"], each["outcome"]) for each in begun} == {
        ("test_a.py::test_engine", "passed"),
        ("test_b.py::test_one", "passed"),  # skipped as a whole file, and planned by nobody
        ("test_b.py::test_two", "passed"),
    }
    told = (planned, first, second)
    left = halves.left([each for file in told for each in outcomes.read(file)])
    assert left == ["test_a.py"]
    run(project, f"--outcomes={second}", *(f"--skipped-in={each}" for each in told), *left, ENGINE="1")
    assert {(each["test"], each["outcome"]) for each in outcomes.read(second)[len(begun) :]} == {
        ("test_a.py::test_nowhere", "skipped"),
        ("test_a.py::test_expected", "skipped"),
    }
    found = halves.Ends.of(outcomes.read(first), outcomes.read(second))
    assert found.failed == ["test_a.py::test_broken"] and len(found.passed) == 4
    assert list(halves.problems(found, KNOWN)) == [
        "failed: test_a.py::test_broken",
        "skipped in both halves, and not listed: test_a.py::test_nowhere: nowhere",
        "skipped in both halves, and not listed: test_a.py::test_expected: expected to fail: ",
    ]
    run(project, f"--outcomes={first}", "test_a.py::test_broken", MENDED="1")
    assert halves.Ends.of(outcomes.read(first), []).flaky == ["test_a.py::test_broken"]
    run(
        project, f"--skipped-in={first}", f"--skipped-in={second}", "test_a.py::test_plain"
    )  # nothing to run is no error


ROW = {"tests": "k/", "reason": "no cluster", "command": "…"}


@pytest.mark.parametrize(
    ("found", "rules", "problem"),
    [
        ({}, {}, ""),
        ({"failed": ["a::2"]}, {}, "failed: a::2"),
        ({"skipped": {"k/b::1": "no cluster here"}}, {"not_run": [ROW]}, ""),
        ({"skipped": {"k/b::1": "not root"}}, {"not_run": [ROW]}, "not listed: k/b::1: not root"),
        ({}, {"not_run": [ROW]}, "remove the row"),
        ({"files": {"b"}}, {}, "no test of this file was collected: a"),
        ({"flaky": ["a::1"]}, {}, ""),
        ({"flaky": ["a::1"]}, {"flaky": [{"test": "a::1", "date": "2026-01-01"}]}, "flaky again, first on 2026-01-01"),
        ({"flaky": ["a::1", "a::2", "a::3"]}, {}, "3 tests are flaky"),
    ],
)
def test_what_fails_ci(found: dict[str, Any], rules: dict[str, Any], problem: str) -> None:
    usual: dict[str, Any] = {"passed": ["a::1"], "failed": [], "flaky": [], "skipped": {}, "files": {"a"}}
    told = "\n".join(halves.problems(halves.Ends(**usual | found), KNOWN | rules, ["a"]))
    assert problem in told if problem else not told


@pytest.mark.parametrize("second", [[], ["passed"]])
def test_a_test_that_failed_has_failed_though_it_was_skipped_again_or_passes_in_the_other_half(
    second: list[str],
) -> None:
    def told(*ends: str) -> list[dict[str, str]]:
        return [{"test": "a::1", "outcome": outcome, "reason": ""} for outcome in ends]

    assert halves.Ends.of(told("failed", "skipped"), told(*second)).failed == ["a::1"]


def test_what_ci_knows_is_whole() -> None:
    told = yaml.safe_load(halves.KNOWN.read_text())
    assert set(told) == set(KNOWN)
    for row in told["not_run"]:
        assert set(row) == {"tests", "reason", "command"} and (TOOLS.parent / row["tests"]).exists()
    assert all(set(row) == {"test", "date"} for row in told["flaky"])
