"""What a run of the tests says: first how long it takes and what it skips for want of what, in the end one line.

A skip is known beforehand from a mark, from the place of a conformance test, or because the test, a fixture or a helper
calls a function of `machine.ENGINES`, or `machine.need`. The few others show at the end alone.
"""

import json
import pathlib
import re
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from outcomes import FIRST

CACHE = "chaos/seconds"  # of the last run here of all tests
USUAL_MINUTES = "10 to 16"  # of all tests on two cores
SHOWN_MAX = 3  # wants in the last line

# A skip's reason, what is wanted, and how to get it. The first that fits.
WANTS = (
    (r"(?i)kubeconfig|cluster to test", "a Kubernetes cluster", "CHAOS_KUBECONFIG=FILE make test"),
    (r"(?i)slurm|sbatch", "Slurm", "make engines ENGINES=slurm"),
    (r"(?i)docker|chaos-base", "Docker", "make engines ENGINES=docker image"),
    (r"(?i)chromium|playwright", "a browser", "make engines ENGINES="),
    (r"(?i)prometheus|promtool", "Prometheus", "make engines ENGINES="),
    (r"pip install|importorskip|could not import", "a Python package", "make setup"),
    (r"not installed|C compiler", "a program", "make engines ENGINES="),
    (r"(?i)\broot\b|another user|ordinary", "root", "run make test as root"),
    (r"(?i)namespace|fuse|cgroup|nodes have no", "a right on this machine", ".venv/bin/python -m harness doctor"),
)


def want(reason: str) -> tuple[str, str]:
    """What a skipped test wants, and how to get it; "" where nobody knows."""
    return next(((what, get) for pattern, what, get in WANTS if re.search(pattern, reason)), (reason, ""))


def lacking(reasons: Iterable[str]) -> list[str]:
    """`12 for want of Docker (make engines …)`, the most frequent first."""
    counts = Counter(map(want, reasons))
    return [f"{count} for want of {what}{get and f' ({get})'}" for (what, get), count in counts.most_common()]


def beforehand(reasons: Iterable[str], tests: int, workers: int, seconds: float | None) -> list[str]:
    how_long = f"the last run here took {minutes(seconds)}" if seconds else f"about {USUAL_MINUTES} min on two cores"
    by = f" by {workers} workers" if workers else ""
    return [f"{tests} tests{by}; all of them: {how_long}", *(f"  will be skipped: {each}" for each in lacking(reasons))]


def last_line(ends: Mapping[str, int], reasons: Iterable[str]) -> str:
    wants = lacking(reasons)
    more = []
    if len(wants) > SHOWN_MAX:
        more = [f"{len(wants) - SHOWN_MAX} further reasons (ARGS=-rs)"]
    skipped = f"{ends['skipped']} skipped" + (": " + "; ".join([*wants[:SHOWN_MAX], *more]) if wants else "")
    failed = [f"{ends['failed']} failed"] if ends["failed"] else []
    return ", ".join([f"{ends['passed']} passed", *failed, skipped])


def minutes(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{int(seconds)} s"


class Announcer:
    """In the process that the user started. With workers, the first of them tells what it will skip, in a file."""

    def __init__(self, config: pytest.Config):
        self._config, self._begun, self._said = config, time.monotonic(), False
        self._reasons: list[str] = []
        self._ends: Counter[str] = Counter()
        self.note = pathlib.Path(tempfile.gettempdir()) / f"chaos-tests-{uuid.uuid4()}.json"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["skips_note"] = str(self.note)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if node.workerinput["workerid"] == FIRST and not self._said:
            # A worker that could not collect has told nothing; its error comes.
            self.say(json.loads(self.note.read_text()) if self.note.exists() else [], len(ids))

    def say(self, reasons: list[str], tests: int) -> None:
        """`self._reasons` are those of whole files by now."""
        self._said = True
        self.note.unlink(missing_ok=True)
        seconds = self._cache.get(CACHE, None) if self._cache else None
        workers = int(self._config.getoption("numprocesses", 0) or 0)
        self._write(*beforehand([*self._reasons, *reasons], tests, workers, seconds))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._ends[report.outcome] += 1
            if report.skipped:
                self._reasons.append(reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._ends["skipped"] += 1
            self._reasons.append(reason(report))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.note.unlink(missing_ok=True)
        if self._cache and all_tests(self._config) and exitstatus in (0, 1):
            self._cache.set(CACHE, time.monotonic() - self._begun)

    def pytest_unconfigure(self) -> None:
        if self._ends:  # after pytest's own last line
            self._write(last_line(self._ends, self._reasons))

    @property
    def _cache(self) -> Any:
        return getattr(self._config, "cache", None)  # not there with -p no:cacheprovider

    def _write(self, *lines: str) -> None:
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            for line in lines:
                reporter.ensure_newline()
                reporter.write_line(line)


def reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    return str(report.longrepr[-1]).removeprefix("Skipped: ")


def all_tests(config: pytest.Config) -> bool:
    chosen = ("keyword", "markexpr", "lf", "skipped_in", "busy", "collectonly")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        config.getoption(each, None) for each in chosen
    )
