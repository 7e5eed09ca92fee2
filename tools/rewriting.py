"""Workers share the work of rewriting assertions, and only rewrite those of tests.

Each worker imports all test files in the same order. On a new checkout each of them would rewrite the assertions of
each file, which takes half of the time of collecting. So each first rewrites a part of the files, and finds the
others' in pytest's cache.

The harness is a plug-in of pytest, which rewrites all files of such a package, too. They assert nothing for a test.
"""

import pathlib
import sys

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"


def leave_out(package: str) -> None:
    """The modules of this package stay as they are from now on."""
    for finder in sys.meta_path:
        if isinstance(finder, rewrite.AssertionRewritingHook):
            finder._must_rewrite.discard(package)
            finder._marked_for_rewrite_cache.clear()


def share(config: pytest.Config) -> None:
    workers = getattr(config, "workerinput", {})
    if not workers or sys.dont_write_bytecode:
        return
    number, count = int(workers["workerid"].removeprefix("gw")), workers["workercount"]
    asked = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    files = [file for file in sorted(TESTS.rglob("test_*.py")) if any(file.is_relative_to(path) for path in asked)]
    for file in files[number::count]:
        folder = rewrite.get_cache_dir(file)
        cached = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, cached) is None and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[assertstate_key], code, source, cached)
