"""What holds for all tests.

A test that needs more than this machine has is skipped. CI runs its tests in two halves, and no test may be skipped in
both but those that `tests/ci.yaml` lists (`tests/outcomes.py`, `tests/halves.py`).

`make test` has three workers, and three long groups, whose tests go one after the other: whole runs through the command
line, of which some look for what a run has left behind; single jobs and faults on virtual nodes of this machine; and
tests of other engines, which mostly wait. All other tests are shared, file by file, by whoever is free.
"""

from __future__ import annotations

import ast
import functools
import pathlib
from typing import Any

import outcomes
import pytest
from hypothesis import settings

if settings().deadline is not None:  # a busy machine breaks no property
    settings.register_profile("no clock", deadline=None)
    settings.load_profile("no clock")

pytest_addoption = outcomes.add_options
pytest_configure = outcomes.configure

LONG_GROUPS = {
    "runs": ("e2e/",),
    "nodes": ("backends/local/", "faults/", "kills/", "mutants/test_real", "run/"),
    "engines": ("backends/docker/", "backends/kubernetes/", "backends/slurm/", "monitoring/test_prometheus"),
}


def group_of(nodeid: str) -> str:
    """Tests of one group run in one worker, in their order."""
    file, _, name = nodeid.removeprefix("tests/").partition("::")
    if file.startswith("conformance/test_conformance_") and "[" in name:
        return "nodes" if "[local-" in name else "engines"
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


WAITING = {"waiting", "subprocess", "multiprocessing", "harness.backends.local.backend", "harness.run.job"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m waits` picks the tests whose module, or a helper of it beside them, imports what starts or waits."""
    if not WAITING.isdisjoint(_imported(item.path)):
        item.add_marker("waits")


@functools.cache
def _imported(file: pathlib.Path) -> frozenset[str]:
    """The names of all modules that this file imports, and its helpers."""
    names, seen, left = set[str](), set[pathlib.Path](), {file}
    while left:
        path = left.pop()
        seen.add(path)
        names |= _imports(path)
        folders = (pathlib.Path(__file__).parent, path.parent)
        helpers = {folder / f"{name.replace('.', '/')}.py" for name in _imports(path) for folder in folders}
        left |= {each for each in helpers - seen if each.exists()}
    return frozenset(names)


@functools.cache
def _imports(file: pathlib.Path) -> frozenset[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(names)
