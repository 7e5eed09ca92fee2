"""`make mutation`: breaks the harness in small ways and counts how many of them the fast tests notice.

    python -m mutation [--sample 500] [--seed 1] [PATTERN of files]

Every mutant is run in a forked child whose imports find the changed module. Only tests that execute the changed line
are run, the quickest first, until one fails. Property tests try the same few examples every time.
"""

import argparse
import ast
import collections
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import random
import re
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

import hypothesis
import pytest
from mutation.operators import Mutant, mutants
from test_import_rules import WINGS

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDERS = ("log", "timeline", "evidence", "judge", "plan", "theory")
TARGETS = [
    *(
        str(path.relative_to(ROOT))
        for folder in _FOLDERS
        for path in sorted((ROOT / "harness" / folder).rglob("*.py"))
        if path.name != "vocabulary.py"  # what it declares is compared whole, as a page
    ),
    *(f"harness/{wing}/{name.replace('.', '/')}.py" for wing, names in WINGS.items() for name in names),
    "harness/gameday/day_plan.py",
    "harness/run/undo.py",
]
TESTS = [
    *(
        str(path.relative_to(ROOT))
        for folder in _FOLDERS
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    ),
    "tests/gameday/test_gameday_plan.py",
    "tests/gameday/test_gameday_verdict.py",
    "tests/gate/test_comparison.py",
    "tests/gate/test_objectives.py",
    "tests/matrix/test_restart_log.py",
    "tests/matrix/test_moments.py",
    "tests/matrix/test_resume_comparison.py",
    "tests/docs/test_metrics_doc.py",
    "tests/docs/test_pages.py",
    "tests/run/test_undo.py",
]
# Plain assertions: to rewrite them, pytest would import the modules of a package with a plug-in itself, unchanged.
QUIETLY = ["-q", "-p", "no:cacheprovider", "--no-header", "--assert=plain"]
EXAMPLES_MAX = 12
LIMIT_S = 60.0  # for the tests of one mutant: what takes longer is stuck, and somebody would notice


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, code: CodeType, origin: str):
        self.name, self.code, self.origin = name, code, origin

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.origin, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


class Coverage:
    """A pytest plugin: how long each test takes, and which lines of the targets it executes."""

    def __init__(self, targets: Sequence[str]):
        self.files = {str(ROOT / target): target for target in targets}
        self.lines: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.failed: list[str] = []
        self._mine: set[tuple[str, int]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._mine = self.lines.setdefault(item.nodeid, set())
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._mine.add((self.files[frame.f_code.co_filename], frame.f_lineno))
        return self._line

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that execute the changed statement; all of the file's and of who imports it, when its import does."""
        path = str(mutant.path.relative_to(ROOT))
        if _in_function(mutant):
            span = _statement(mutant)
            chosen = [test for test, lines in self.lines.items() if any((path, line) in lines for line in span)]
        else:
            imports = f"from {path.removesuffix('.py').replace('/', '.')} import "
            users = {each for each in TESTS if (ROOT / each).exists() and imports in (ROOT / each).read_text()}
            chosen = [
                test
                for test, lines in self.lines.items()
                if any(file == path for file, _ in lines) or test.partition("::")[0] in users
            ]
        return sorted(chosen, key=lambda test: self.seconds[test])


class FewExamples:
    """A pytest plugin: property tests try few examples; a mutant that lives through them counts as not noticed."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for test in {item.obj for item in items if isinstance(item, pytest.Function)}:
            chosen = getattr(test, "_hypothesis_internal_use_settings", None)
            if chosen is not None:
                few = min(chosen.max_examples, EXAMPLES_MAX)
                test._hypothesis_internal_use_settings = hypothesis.settings(chosen, max_examples=few)


def _statement(mutant: Mutant) -> range:
    """The lines of the innermost simple statement around the change."""
    best = range(mutant.line, mutant.line + 1)
    for node in ast.walk(ast.parse(mutant.path.read_text())):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if mutant.line in span:
                best = span
    return best


def _in_function(mutant: Mutant) -> bool:
    """In the body of one: what its parameters default to is executed by the import."""
    for node in ast.walk(ast.parse(mutant.path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= mutant.line <= (node.end_lineno or 0):
            return True
    return False


def in_child(act: Any) -> tuple[str, float]:
    """What `act` (in a forked child) comes to: `killed`, `survived` or `stuck`, and the seconds it took."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 1
        with contextlib.suppress(BaseException):
            code = act()
        os._exit(code)
    pidfd = os.pidfd_open(child)
    ended, _, _ = select.select([pidfd], [], [], LIMIT_S)
    os.close(pidfd)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    answer = "survived" if status == 0 else "killed"
    return answer if ended else "stuck", time.monotonic() - begin


def try_out(mutant: Mutant, tests: Sequence[str]) -> int:
    """0: no test noticed. Runs in a child of its own."""
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    name = ".".join(mutant.path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, Changed(name, compile(mutant.tree(), str(mutant.path), "exec"), str(mutant.path)))
    return int(pytest.main([*QUIETLY, *tests, "-x", "--tb=no"], plugins=[FewExamples()]))


def steady() -> None:
    """Property tests with the same examples for every mutant, and without shrinking what fails."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutation")


def measure(targets: Sequence[str], tests: Sequence[str]) -> Coverage:
    """The unchanged harness: every test must pass. In a child, which leaves no module imported here."""
    import pickle

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        coverage = Coverage(targets)
        with contextlib.suppress(BaseException):
            pytest.main([*QUIETLY, *tests], plugins=[coverage, FewExamples()])
        with os.fdopen(write, "wb") as file:
            pickle.dump((coverage.lines, dict(coverage.seconds), coverage.failed), file)
        os._exit(0)
    os.close(write)
    coverage = Coverage(targets)
    with os.fdopen(read, "rb") as file:
        coverage.lines, coverage.seconds, coverage.failed = pickle.load(file)
    os.waitpid(child, 0)
    return coverage


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="of the files to change")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    steady()
    import msgspec, numpy, pydantic, rich.console, typer, yaml  # noqa: E401, F401, I001  once, not in each child

    targets = [target for target in TARGETS if re.search(arguments.pattern, target)]
    everything = [mutant for target in targets for mutant in mutants(ROOT / target)]
    chosen = everything
    if arguments.sample and arguments.sample < len(everything):
        chosen = sorted(random.Random(arguments.seed).sample(everything, arguments.sample), key=str)
    coverage = measure(targets, [test for test in TESTS if (ROOT / test).exists()])
    if coverage.failed or not coverage.lines:
        print("tests fail without any change:", *coverage.failed, sep="\n  ")
        return 2
    print(f"{len(coverage.lines)} tests, {len(chosen)} of {len(everything)} mutants")
    return report(chosen, coverage)


def report(chosen: Sequence[Mutant], coverage: Coverage) -> int:
    answers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    begin = time.monotonic()
    for mutant in chosen:
        tests = coverage.tests_of(mutant)
        answer, _ = in_child(lambda m=mutant, t=tests: try_out(m, t)) if tests else ("no test", 0.0)
        path = str(mutant.path.relative_to(ROOT))
        answers[path][answer] += 1
        if answer in ("survived", "no test"):
            print(f"{answer}: {path}:{mutant.line}: {mutant.change} [{mutant.place}]", flush=True)
    total: collections.Counter[str] = collections.Counter()
    for path, found in answers.items():
        total.update(found)
        print(f"{path:40} {_rate(found)}")
    print(f"{'all':40} {_rate(total)} in {time.monotonic() - begin:.0f} s")
    return 0


def _rate(found: collections.Counter[str]) -> str:
    killed, whole = found["killed"] + found["stuck"], sum(found.values())
    return f"{killed:5} of {whole:5} killed ({100 * killed / whole:5.1f} %), {found['stuck']} of them by the time limit"


if __name__ == "__main__":
    sys.exit(main())
