"""Which tests run beside each other: of two workers, each takes a whole group."""

import collections
import pathlib
import re
import subprocess
import sys
from types import SimpleNamespace

import groups
from xdist.remote import Producer

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def test_behind_a_long_test_waits_the_last_group_and_not_the_next() -> None:
    """Two workers are told their second group while the first goes on."""
    files = ["preflight/test_real_preflight", "cli/test_wheel", "log/test_first", "log/test_second", "log/test_third"]
    told: dict[str, list[str]] = {"a": [], "b": []}

    class Worker:
        shutting_down = False

        def __init__(self, name: str):
            self.told, self.gateway = told[name], SimpleNamespace(id=name)

        def send_runtest_some(self, numbers: list[int]) -> None:
            self.told += [files[number] for number in numbers]

    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=option, getoption=lambda *_: False, getvalue=lambda _: ["popen"] * 2)
    scheduler = groups.scheduler(config, Producer("test", enabled=False))  # type: ignore[arg-type]
    workers = [Worker(name) for name in told]
    for each in workers:
        scheduler.add_node(each)
    for each in workers:
        scheduler.add_node_collection(each, [f"tests/{file}.py::test" for file in files])
    scheduler.schedule()
    assert told == {"a": [files[0], files[4]], "b": [files[1], files[3]]}
