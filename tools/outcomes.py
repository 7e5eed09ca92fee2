"""Notes how each test ended, and picks those that another run skipped: CI runs its tests in two halves.

The first half runs all tests where no engine is, the second one only what ran nowhere yet (`tools/halves.py`).
"""

import json
import pathlib
from typing import Any

import pytest

Outcome = dict[str, str]  # test (its node id, or a file that was skipped as a whole), outcome, reason


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcomes", metavar="FILE", help="add a line to FILE for each test: its name, outcome and reason"
    )
    parser.addoption(
        "--skipped-in",
        metavar="FILE",
        action="append",
        help="run only what ran in none of these outcomes; several may be given",
    )


def configure(config: pytest.Config) -> None:
    if (file := config.getoption("--outcomes")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(pathlib.Path(file)))


def read(file: pathlib.Path) -> list[Outcome]:
    """In the order in which they came: a test that ran again is there again."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what ran in none of `--skipped-in`; nothing where the first of them is empty: that half came to nothing."""
    if files := config.getoption("--skipped-in"):
        last = [{each["test"]: each["outcome"] for each in read(pathlib.Path(file))} for file in files]
        ran = {test for ends in last for test, outcome in ends.items() if outcome != "skipped"}
        chosen = [item for item in items if last[0] and item.nodeid not in ran]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


class Writer:
    """One line a test, written by the process that the user started and not by its workers."""

    def __init__(self, file: pathlib.Path):
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._write(report)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # all that was asked for is another half's

    def _write(self, report: Any) -> None:
        outcome, reason = report.outcome, ""
        if hasattr(report, "wasxfail"):  # a test that may fail proves nothing
            outcome, reason = "skipped", f"expected to fail: {report.wasxfail}"
        elif report.skipped:
            reason = str(report.longrepr[-1])
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = (crash.message if crash else str(report.longrepr)).strip().partition("\n")[0]
        line = {"test": report.nodeid, "outcome": outcome, "reason": reason.removeprefix("Skipped: ")}
        with self._file.open("a") as out:
            out.write(json.dumps(line) + "\n")
