"""Notes how each test ended, and picks those that another run skipped: CI runs its tests in two halves.

The first half runs all tests where no engine is, the second one only what is skipped there (`tools/halves.py`). It
begins as soon as the first one has told that, before its first test.
"""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

FIRST = "gw0"  # the worker that tells for all
Outcome = dict[str, str]  # test (its node id, or a file that was skipped as a whole), outcome, reason


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcomes", metavar="FILE", help="add a line to FILE for each test: its name, outcome and reason"
    )
    parser.addoption("--planned", metavar="FILE", help="before the first test: the outcomes, as far as they are known")
    more = "run only what was skipped in these outcomes, or is not in them; of several files the later ones count"
    parser.addoption("--skipped-in", metavar="FILE", action="append", help=more)


def configure(config: pytest.Config) -> None:
    if (file := config.getoption("--outcomes")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(pathlib.Path(file)))
    if config.getoption("--skipped-in"):
        config.pluginmanager.register(NothingLeft())


def read(file: pathlib.Path) -> list[Outcome]:
    """In the order in which they came: a test that ran again is there again."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def skipped(outcomes: list[Outcome]) -> dict[str, str]:
    """The tests and the whole files that were skipped in the end, each with its reason."""
    last = {each["test"]: each for each in outcomes}
    run = {test.partition("::")[0] for test in last if "::" in test}  # test by test, whatever was told of the whole
    return {test: each["reason"] for test, each in last.items() if each["outcome"] == "skipped" and test not in run}


def plan(config: pytest.Config, items: list[pytest.Item], lack: Callable[[pytest.Item], str]) -> None:
    """Writes the file of `--planned`. `lack` says why a test will be skipped; "" where it will run."""
    worker = getattr(config, "workerinput", {"workerid": FIRST})["workerid"]
    if worker == FIRST and (file := config.getoption("--planned")):
        reasons = {item.nodeid: lack(item) for item in items}
        lines = [
            json.dumps({"test": test, "outcome": "skipped" if reason else "planned", "reason": reason}) + "\n"
            for test, reason in reasons.items()
        ]
        written = pathlib.Path(f"{file}.new")
        written.write_text("".join(lines))
        os.replace(written, file)  # whoever waits for it finds all of it


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what `--skipped-in` names, and what only this machine has, as tests with another Python."""
    if files := config.getoption("--skipped-in"):
        told = [each for file in files for each in read(pathlib.Path(file))]
        wanted, known = skipped(told), {each["test"] for each in told}
        chosen = [
            item
            for item in items
            if item.nodeid in wanted or item.nodeid.partition("::")[0] in wanted or (known and item.nodeid not in known)
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


class NothingLeft:
    """No test is left to run: all is well."""

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


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
