"""The pytest plug-in: `pytest --chaos` runs the tests that launch jobs (see docs/python.md).

    def test_survives_an_eviction(chaos):
        assert chaos.run("spot-evict", command=["torchrun", "--nproc-per-node", "2", "train.py"]).passed

Without `--chaos`, tests that launch jobs are skipped. With pytest-xdist, the jobs of all workers run one after the
other, because two jobs at a time would slow each other, and a job's speed is judged.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from harness.errors import ChaosError

if TYPE_CHECKING:
    from harness.api import GateResult, Result

__tracebackhide__ = True
LOCK = ".pytest-chaos.lock"
TOLD = "chaos"  # the name of a test's property: verdict and page of a run
WHY = "launches real jobs: pytest --chaos runs it"
T = TypeVar("T", bound="Result | GateResult")


class Chaos:
    """The pytest fixture `chaos`, which runs scenarios and gates (scenario suites) as `harness.api` does, in the folder
    `root`. At the end of a test session, pytest lists the report pages."""

    def __init__(self, root: pathlib.Path, reports: pathlib.Path, tell: Callable[[str, object], None]):
        self.root, self.reports = root, reports
        self._tell = tell

    def run(self, scenario: Any, **options: Any) -> Result:
        """Runs a scenario as `harness.api.run` does. The run is stored in the folder that `--chaos-reports` names."""
        from harness import api

        return self._one_at_a_time(functools.partial(api.run, scenario, reports=self.reports, **options))

    def gate(self, suite: Any, **options: Any) -> GateResult:
        """Runs a suite as `harness.api.gate` does."""
        from harness import api

        return self._one_at_a_time(functools.partial(api.gate, suite, reports=self.reports, **options))

    def _one_at_a_time(self, call: Callable[[], T]) -> T:
        from harness.cli import default_folders
        from harness.report import commands
        from harness.report.words import one_line

        self.reports.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            lock = held.enter_context((self.reports / LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of pytest-xdist wait here
            held.enter_context(contextlib.chdir(self.root))
            try:
                result = call()
            except ChaosError as error:
                raise error.with_traceback(None) from None  # its words say what is wrong
        why = () if result.passed else getattr(result, "reasons", None) or (getattr(result, "reason", ""),)
        commands.here.reports, commands.here.docs = str(self.reports), default_folders.docs()
        report = getattr(result, "report", None)
        steps = report.next_steps if report else getattr(result, "values", {}).get("next_steps", ())
        told = [f"{result.verdict}  {result.page}", *(f"  - {one_line(each)}" for each in why)]
        told += [f"  Next: {one_line(commands.step_here(each))}" for each in steps]
        self._tell(TOLD, "\n".join(told))
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "chaos and resilience tests of a training")
    group.addoption("--chaos", action="store_true", help="run the tests that launch jobs, too")
    group.addoption("--chaos-reports", default="reports", metavar="FOLDER", help="where runs are kept (reports/)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "chaos: launches real jobs; runs with --chaos only, as tests with the fixture do"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--chaos"):
        for item in items:
            if item.get_closest_marker("chaos") or _uses_ours(item):
                item.add_marker(pytest.mark.skip(reason=WHY))


def _uses_ours(item: pytest.Item) -> bool:
    """Returns True if the test uses this plug-in's fixture `chaos`, and not another fixture with this name."""
    known = getattr(item, "_fixtureinfo", None)
    found = known.name2fixturedefs.get("chaos", ()) if known else ()
    return any(each.func.__module__ == __name__ for each in found[-1:])


@pytest.fixture
def chaos(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Chaos:
    """Runs scenarios and gates (scenario suites), with the options of `harness.api`."""
    folder = request.config.rootpath / request.config.getoption("--chaos-reports")
    return Chaos(request.config.rootpath, folder, record_property)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints each run's verdict and report page, the reasons if the run did not pass, and what to do next. The text on
    each run is stored as a property of its test, because pytest-xdist copies test properties from its workers."""
    told = [
        (report.nodeid, value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == TOLD
    ]
    if told:
        terminalreporter.section("chaos")
        for test, text in told:
            line, *reasons = str(text).split("\n")
            terminalreporter.line("\n".join([f"{line}  ({test})", *reasons]))
