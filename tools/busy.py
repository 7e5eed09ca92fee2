"""`--busy=COMMIT`: a tenth of the healthy jobs beside two busy loops, drawn by the commit, so that each commit has others.

A test is marked `healthy` where it judges a real job whose right verdict is *pass*. Beside busy loops the job is slower,
and still healthy.
"""

import contextlib
import hashlib
import math
import os
import subprocess
import sys

import pytest

from harness.node import burner

LOOPS = 2
SHARE = 0.1


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--busy", metavar="COMMIT", help="a tenth of the healthy jobs, beside two busy loops; `all`: each")


def configure(config: pytest.Config) -> None:
    if config.getoption("--busy") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Loops())


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    if commit := config.getoption("--busy"):
        drawn = set(draw([item.nodeid for item in items if item.get_closest_marker("healthy")], commit))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
        items[:] = [item for item in items if item.nodeid in drawn]


def draw(tests: list[str], commit: str) -> list[str]:
    """A tenth, rounded up: those that come first by the digest of the commit and their name."""
    by_digest = sorted(tests, key=lambda test: hashlib.sha256(f"{commit} {test}".encode()).digest())
    return by_digest if commit == "all" else by_digest[: math.ceil(SHARE * len(tests))]


class Loops:
    """Burners from the first test to the last; what collects the tests has the cores for itself. They end with the
    process that started them."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        load = os.memfd_create("load")
        self._open.callback(os.close, load)
        os.pwrite(load, burner.LOAD.pack(LOOPS), 0)
        for number in range(LOOPS):
            self._open.callback(_end, _loop(load, number))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._open.close()
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # no healthy job is among the tests that were asked for


def _loop(load: int, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, burner.__file__, "cpu", str(load), str(number)]
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], pass_fds=[load])


def _end(loop: subprocess.Popen[bytes]) -> None:
    loop.kill()
    loop.wait()
