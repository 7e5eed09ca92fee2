"""Notes how each test ended, and picks those that another run skipped: CI runs its tests in two halves.

The first half runs all tests where no engine is, the second one only what was skipped there (`tools/halves.py`).
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
        "--skipped-in", metavar="FILE", help="run only what was skipped in these outcomes, or is not in them"
    )


def configure(config: pytest.Config) -> None:
    if (file := config.getoption("--outcomes")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(pathlib.Path(file)))


def read(file: pathlib.Path) -> list[Outcome]:
    """In the order in which they came: a test that ran again is there again."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def skipped(outcomes: list[Outcome]) -> dict[str, str]:
    """The tests and the whole files that were skipped in the end, each with its reason."""
    last = {each["test"]: each for each in outcomes}
    return {test: each["reason"] for test, each in last.items() if each["outcome"] == "skipped"}


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what `--skipped-in` names, and what only this machine has, as tests with another Python."""
    if file := config.getoption("--skipped-in"):
        told = read(pathlib.Path(file))
        wanted, known = skipped(told), {each["test"] for each in told}
        chosen = [
            item
            for item in items
            if item.nodeid in wanted or item.nodeid.partition("::")[0] in wanted or (known and item.nodeid not in known)
        ]
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
