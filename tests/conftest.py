"""What holds for all tests.

A test that needs more than this machine has is skipped. CI runs its tests in two halves, and no test may be skipped in
both but those that `tests/ci.yaml` lists (`tools/outcomes.py`, `tools/halves.py`).
"""

import gc
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import announcing
import busy
import groups
import machine
import needs
import outcomes
import pytest
import rewriting
import waiting
from hypothesis import HealthCheck, settings

from harness.backends.contract import load_backend
from harness.report import commands

# A rank of torchrun that is alone on its node takes a thread for each core, and threads that wait for each other burn
# the cores of the tests beside. Whoever says another number is heard.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
_paths = [machine.CHILDREN, str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, _paths)))  # of all programs that tests start
gc.disable()  # until all is collected: what is made by then stays, and looking through it takes a third of the time

# A busy machine breaks no property, and a verdict on the code is not drawn by lot: each run tries the same examples.
# `make properties` tries others.
NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.register_profile("same", NO_CLOCK, derandomize=True)
settings.register_profile("other-examples", NO_CLOCK, max_examples=1000)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    outcomes.add_options(parser)
    busy.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    rewriting.leave_out("harness")
    outcomes.configure(config)
    busy.configure(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(announcing.Announcer(config), "announcer")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    rewriting.share(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return groups.scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    outcomes.select(config, items)
    busy.select(config, items)
    outcomes.plan(config, items, needs.lack)
    if hasattr(config, "workerinput"):
        groups.sort(items)
        if config.workerinput["workerid"] == outcomes.FIRST:
            pathlib.Path(config.workerinput["skips_note"]).write_text(json.dumps(needs.lacks(items)))
    elif announcer := config.pluginmanager.get_plugin("announcer"):
        announcer.say(needs.lacks(items), len(items))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m waits` picks the tests that wait for something: they, a fixture or a helper of theirs calls `waiting.until`."""
    if waiting.until in needs.called(item):
        item.add_marker("waits")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test says where runs and scenarios are."""
    for name in ("reports", "scenarios"):
        monkeypatch.setattr(commands.here, name, "")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local backend without namespaces, which is there on any machine."""
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")


@pytest.fixture(scope="session")
def slurm_up() -> Iterator[None]:
    """Our Slurm for the tests of this worker, where it is installed and none runs. A backend that has seen its engine
    once does not look again: Slurm stays until the last test."""
    machine.need_slurm()
    started = not load_backend("slurm").probe().available
    if started:
        subprocess.run([machine.SLURM, "start"], check=True)
    yield
    if started:
        subprocess.run([machine.SLURM, "stop"], check=True)
