"""What holds for all tests.

In CI a skipped test is a failed one: what is missing there must not vanish silently. The exceptions are tests of what
this machine, with all engines installed, cannot have.

`make test` has three workers, and three long groups, whose tests go one after the other: whole runs through the command
line, of which some look for what a run has left behind; single jobs and faults on virtual nodes of this machine; and
tests of other engines, which mostly wait. All other tests are shared, file by file, by whoever is free.
"""

from __future__ import annotations

import ast
import functools
import os
import pathlib
import re
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

if settings().deadline is not None:  # a busy machine breaks no property
    settings.register_profile("no clock", deadline=None)
    settings.load_profile("no clock")

MAY_BE_SKIPPED = {
    "backends/kubernetes/test_kubernetes.py": "CHAOS_KUBECONFIG names no cluster",
    "conformance/": "^(?!.*(cannot run here|not root))",  # a verb that a backend lacks; which ones those are is tested there
    "backends/local/": "a process tree .*",  # the weakest of three ways to be a node
    "faults/test_node_verbs.py": "control groups for nodes take root",
    "reference_trainer/test_checkpoint.py": "covered by the others",
}

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
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: group_of(item.nodeid) not in LONG_GROUPS)


def _must_run(report: pytest.TestReport | pytest.CollectReport) -> bool:
    if os.environ.get("CI", "").lower() not in ("true", "1") or not report.skipped or hasattr(report, "wasxfail"):
        return False
    place, reason = report.nodeid.removeprefix("tests/"), str(report.longrepr)
    return not any(place.startswith(where) and re.search(why, reason) for where, why in MAY_BE_SKIPPED.items())


def _fail(report: Any) -> None:
    if _must_run(report):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr[-1]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    report = yield
    _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    report = yield
    _fail(report)
    return report


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
