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


@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_half_runs_what_is_skipped_and_nothing_else(project: pathlib.Path, workers: int) -> None:
    """It begins with what the first one plans, and ends with what that did not foresee."""
    (project / "pytest.ini").write_text(f"[pytest]\naddopts = --numprocesses {workers}\n")
    planned, first, second = (project / f"{name}.jsonl" for name in ("planned", "first", "second"))
    run(project, f"--outcomes={first}", f"--planned={planned}")
    run(project, f"--outcomes={second}", f"--skipped-in={planned}", ENGINE="1")
    begun = outcomes.read(second)
    assert {(each["test"], each["outcome"]) for each in begun} == {
        ("test_a.py::test_engine", "passed"),
        ("test_b.py::test_one", "passed"),  # skipped as a whole file, and planned by nobody
        ("test_b.py::test_two", "passed"),
    }
    run(project, f"--outcomes={second}", *(f"--skipped-in={each}" for each in (planned, first, second)), ENGINE="1")
    assert {(each["test"], each["outcome"]) for each in outcomes.read(second)[len(begun) :]} == {
        ("test_a.py::test_nowhere", "skipped"),
        ("test_a.py::test_expected", "skipped"),
    }
    ends = halves.Ends.of(outcomes.read(first), outcomes.read(second))
    assert ends.failed == ["test_a.py::test_broken"] and len(ends.passed) == 4
    assert list(halves.problems(ends, KNOWN)) == [
        "failed: test_a.py::test_broken",
        "skipped in both halves, and not listed: test_a.py::test_nowhere: nowhere",
        "skipped in both halves, and not listed: test_a.py::test_expected: expected to fail: ",
    ]


def test_what_fails_once_is_flaky(project: pathlib.Path) -> None:
    first = project / "first.jsonl"
    run(project, f"--outcomes={first}", ENGINE="1")
    run(project, f"--outcomes={first}", "test_a.py::test_broken", ENGINE="1", MENDED="1")
    ends = halves.Ends.of(outcomes.read(first), [])
    assert ends.flaky == ["test_a.py::test_broken"] and not ends.failed
    run(project, f"--skipped-in={first}", "test_b.py", ENGINE="1")  # nothing is left to run, which is no error


def ends(**more: Any) -> halves.Ends:
    return halves.Ends(**({"passed": ["a::1"], "failed": [], "flaky": [], "skipped": {}, "files": {"a"}} | more))


def known(**more: Any) -> dict[str, Any]:
    return KNOWN | more


ROW = {"tests": "k/", "reason": "no cluster", "command": "…"}


@pytest.mark.parametrize(
    ("found", "rules", "problem"),
    [
        (ends(), known(), ""),
        (ends(failed=["a::2"]), known(), "failed: a::2"),
        (ends(skipped={"k/b::1": "no cluster here"}), known(not_run=[ROW]), ""),
        (ends(skipped={"k/b::1": "not root"}), known(not_run=[ROW]), "not listed: k/b::1: not root"),
        (ends(), known(not_run=[ROW]), "remove the row"),
        (ends(files={"b"}), known(), "no test of this file was collected: a"),
        (ends(flaky=["a::1"]), known(), ""),
        (
            ends(flaky=["a::1"]),
            known(flaky=[{"test": "a::1", "date": "2026-01-01"}]),
            "flaky again, first on 2026-01-01",
        ),
        (ends(flaky=["a::1", "a::2", "a::3"]), known(), "3 tests are flaky"),
    ],
)
def test_what_fails_ci(found: halves.Ends, rules: dict[str, Any], problem: str) -> None:
    told = "\n".join(halves.problems(found, rules, ["a"]))
    assert problem in told if problem else not told


def test_a_test_that_failed_and_was_then_skipped_has_failed() -> None:
    lines = [{"test": "a::1", "outcome": outcome, "reason": ""} for outcome in ("failed", "skipped")]
    assert halves.Ends.of(lines, []).failed == ["a::1"]


def test_what_failed_in_one_half_has_failed_though_the_other_passes_it() -> None:
    """It failed without engines, was skipped there when it ran again, and passes with them."""
    first = [{"test": "a::1", "outcome": outcome, "reason": ""} for outcome in ("failed", "skipped")]
    assert halves.Ends.of(first, [{"test": "a::1", "outcome": "passed", "reason": ""}]).failed == ["a::1"]


def test_what_ci_knows_is_whole() -> None:
    told = yaml.safe_load(halves.KNOWN.read_text())
    assert set(told) == set(KNOWN)
    for row in told["not_run"]:
        assert set(row) == {"tests", "reason", "command"} and (TOOLS.parent / row["tests"]).exists()
    assert all(set(row) == {"test", "date"} for row in told["flaky"])
