"""What holds for all tests.

A test that needs more than this machine has is skipped. CI runs its tests in two halves, and no test may be skipped in
both but those that `tests/ci.yaml` lists (`tests/outcomes.py`, `tests/halves.py`).

`make test` has three workers, and long groups, whose tests go one after the other: whole runs through the command
line, of which some look for what a run has left behind; single jobs and faults on virtual nodes of this machine; and
the tests of each other engine, which mostly wait. All other tests are shared, file by file, by whoever is free.
"""

from __future__ import annotations

import functools
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import outcomes
import pytest
import waiting
from hypothesis import HealthCheck, settings

HERE = str(pathlib.Path(__file__).parent)

# A busy machine breaks no property, and a verdict on the code is not drawn by lot: each run tries the same examples.
# `make explore` tries others.
NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("same", derandomize=True, **NO_CLOCK)
settings.register_profile("explore", max_examples=1000, **NO_CLOCK)
settings.load_profile("same")

pytest_addoption = outcomes.add_options
pytest_configure = outcomes.configure

LONG_GROUPS = {
    "runs": ("e2e/",),
    "nodes": ("backends/local/", "faults/", "kills/", "mutants/test_real", "run/"),
    "docker": ("backends/docker/", "monitoring/test_prometheus"),
    "slurm": ("backends/slurm/",),
    "kubernetes": ("backends/kubernetes/",),
}
PLACES = {"local": "nodes"} | {engine: engine for engine in ("docker", "slurm", "kubernetes")}  # where a node is


def group_of(nodeid: str) -> str:
    """Tests of one group run in one worker, in their order."""
    file, _, name = nodeid.removeprefix("tests/").partition("::")
    if file.startswith("conformance/test_conformance_"):
        place = re.search(r"\[(\w+)", name)
        return PLACES.get(place[1], file) if place else file
    return next((group for group, places in LONG_GROUPS.items() if file.startswith(places)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With workers, the long groups come first, so that the workers end at about the same time."""
    outcomes.select(config, items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: group_of(item.nodeid) not in LONG_GROUPS)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m waits` picks the tests that wait for something: they, a fixture or a helper of theirs calls `waiting.until`."""
    if isinstance(item, pytest.Function):
        fixtures = [each.func for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
        if any(map(_waits, [item.function, *fixtures])):
            item.add_marker("waits")


@functools.cache
def _waits(function: Callable[..., Any]) -> bool:
    seen, left = set[Any](), [inspect.unwrap(function)]
    while left:
        one = left.pop()
        if one is waiting.until:
            return True
        if one not in seen and getattr(one, "__module__", None) in sys.modules:
            seen.add(one)
            left += _named(one)
    return False


def _named(one: Any) -> Iterator[Any]:
    """What a function or class of the tests names: functions and classes of the tests."""
    file = getattr(sys.modules[one.__module__], "__file__", None) or ""
    if not file.startswith(HERE):
        return
    if isinstance(one, type):
        yield from (inspect.unwrap(each) for each in vars(one).values() if inspect.isfunction(each))
    elif inspect.isfunction(one):
        names = set(_names(one.__code__))
        for name in names & one.__globals__.keys():
            value = one.__globals__[name]
            values = [vars(value).get(each) for each in names] if inspect.ismodule(value) else [value]
            yield from (inspect.unwrap(each) for each in values if inspect.isfunction(each) or inspect.isclass(each))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local backend without namespaces, which is there on any machine."""
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")
