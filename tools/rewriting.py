"""Workers share the work of rewriting assertions.

Each worker imports all test files in the same order. On a new checkout each of them would rewrite the assertions of
each file, which takes half of the time of collecting. So each first rewrites a part of the files, and finds the
others' in pytest's cache.
"""

import pathlib
import sys

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"


def share(config: pytest.Config) -> None:
    workers = getattr(config, "workerinput", {})
    if not workers or sys.dont_write_bytecode or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number, count = int(workers["workerid"].removeprefix("gw")), workers["workercount"]
    for file in sorted(TESTS.rglob("test_*.py"))[number::count]:
        folder = rewrite.get_cache_dir(file)
        cached = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, cached) is None and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[assertstate_key], code, source, cached)
