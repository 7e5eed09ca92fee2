"""Which tests run beside each other: of two workers, each takes a whole group."""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = (
    "tests/faults/test_contract.py",
    "tests/faults/test_fault_stopped.py",
    "tests/log/test_hostile.py",
    "tests/test_plugins.py",
)


def test_tests_of_one_group_run_in_one_worker() -> None:
    workers = ("--numprocesses", "2", "--dist", "loadscope", "--no-loadscope-reorder")
    command = [sys.executable, "-m", "pytest", *workers, "-vv", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = collections.defaultdict(set)
    for worker, file in re.findall(r"\[(gw\d)\].* PASSED tests/(\S+?)::", done.stdout):
        seen[file].add(worker)
    assert len(seen) == len(FILES) and {len(workers) for workers in seen.values()} == {1}, seen
    assert seen["faults/test_contract.py"] == seen["faults/test_fault_stopped.py"], "faults go one after the other"
