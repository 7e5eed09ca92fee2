"""What holds for all tests.

A test that needs more than this machine has is skipped. CI runs its tests in two halves, and no test may be skipped in
both but those that `tests/ci.yaml` lists (`tests/outcomes.py`, `tests/halves.py`).

`make test` has six workers for two cores, as most real jobs wait more than they compute. Tests of one group go one
after the other: those of faults on virtual nodes of this machine, of the conformance of such nodes, and of each other
engine. A group is a file otherwise, and a sweep is taken alone, as it shares nothing. What takes longest comes first,
then the other files that start jobs, then all others, by whoever is free.
"""

from __future__ import annotations

import gc
import json
import pathlib
import re
from typing import Any

import announcing
import busy
import needs
import outcomes
import pytest
import rewriting
import waiting
from hypothesis import HealthCheck, settings

from harness.report import commands

gc.disable()  # until all is collected: what is made by then stays, and looking through it takes a third of the time

# A busy machine breaks no property, and a verdict on the code is not drawn by lot: each run tries the same examples.
# `make explore` tries others.
NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("same", derandomize=True, **NO_CLOCK)
settings.register_profile("explore", max_examples=1000, **NO_CLOCK)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    outcomes.add_options(parser)
    busy.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    outcomes.configure(config)
    busy.configure(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(announcing.Announcer(config), "announcer")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    rewriting.share(session.config)


GROUPS = {
    "nodes": ("backends/local/", "faults/"),
    "docker": ("backends/docker/", "monitoring/test_prometheus"),
    "slurm": ("backends/slurm/",),
    "places": (),
    "kubernetes": ("backends/kubernetes/",),
}
# Where the node of a conformance test is.
PLACES = {"local": "places"} | {engine: engine for engine in ("docker", "slurm", "kubernetes")}
LONGEST = (  # the longest first: groups, and how the names of files begin
    "e2e/test_bring",
    "slurm",
    "docker",
    "e2e/test_scenarios",
    "nodes",
    "preflight/test_real",
    "mutants/test_real",
    "e2e/",
    "places",
    "kills/",
    "observer/",
    "kubernetes",
    "preflight/test_hostile",
    "forecast/test_campaigns",
    "matrix/",
    "run/",
    "cli/test_wheel",
    "gate/test_comparison",
)
TAKEN_ALONE = ("matrix/test_resume_matrix", "matrix/test_checkpoint_matrix")  # no test there shares a fixture


def group_of(nodeid: str) -> str:
    """Tests of one group run in one worker, in their order."""
    file, _, name = nodeid.removeprefix("tests/").partition("::")
    if file.startswith("conformance/test_conformance_"):
        place = re.search(r"\[(\w+)", name)
        return PLACES.get(place[1], file) if place else file
    if file.startswith(TAKEN_ALONE):
        return nodeid
    return next((group for group, places in GROUPS.items() if file.startswith(places)), file)


def rank(group: str, slow: bool) -> int:
    """The place of a group in the order of work."""
    name = group.removeprefix("tests/")
    return next((at for at, begin in enumerate(LONGEST) if name.startswith(begin)), len(LONGEST) + (not slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    outcomes.select(config, items)
    busy.select(config, items)
    if hasattr(config, "workerinput"):
        slow = {group_of(item.nodeid) for item in items if item.get_closest_marker("slow")}
        ranks = {group: rank(group, group in slow) for group in {group_of(item.nodeid) for item in items}}
        items.sort(key=lambda item: ranks[group_of(item.nodeid)])
        if config.workerinput["workerid"] == announcing.FIRST:
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
