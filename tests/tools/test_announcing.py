"""What `make test` says first and last, which tests run beside each other, and which healthy jobs run beside busy loops."""

import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import announcing
import busy
import groups
import halves
import machine
import outcomes
import pytest
import yaml
from xdist.remote import Producer

HERE = pathlib.Path(__file__).resolve().parents[1]
CONFTEST = """
import busy, needs, outcomes, pathlib, rewriting
rewriting.TESTS = pathlib.Path(__file__).parent
needs.HERE = str(pathlib.Path(__file__).parent)
def pytest_addoption(parser): outcomes.add_options(parser); busy.add_options(parser)
from conftest_of_all import pytest_configure, pytest_collection, pytest_collection_modifyitems
"""
TESTS = """
import machine, pytest
@pytest.fixture
def engine(): machine.need_docker()
def started(): machine.need("chromium")
def test_docker(engine): pass
def test_browser(): started()
@pytest.mark.skipif(True, reason="CHAOS_KUBECONFIG names no cluster")
def test_cluster(): pass
def test_plain(): pass
def test_surprise(): pytest.skip("the moon is full")
@pytest.mark.healthy
def test_healthy(): assert 0, "accused"
"""
BEFOREHAND = [
    "will be skipped: 1 for want of Docker (make engines ENGINES=docker image)",
    "will be skipped: 1 for want of a browser (make engines ENGINES=)",
    "will be skipped: 1 for want of a Kubernetes cluster (CHAOS_KUBECONFIG=FILE make test)",
]


def run(folder: pathlib.Path, *options: str, path: str = "/nowhere") -> str:
    """The tests above, with all that holds for all tests, on a machine that has no program but those in `path`."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "conftest_of_all.py").write_text((HERE / "conftest.py").read_text())
    (folder / "test_a.py").write_text(TESTS)
    (folder / "test_whole.py").write_text('import pytest; pytest.skip("pip install x", allow_module_level=True)')
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers =\n  healthy\n  slow\n  waits\n")
    paths = {"PYTHONPATH": f"{HERE}:{HERE.parent}:{HERE.parent}/tools:{folder}", "PATH": path}
    paths["DOCKER_HOST"] = "unix:///nowhere"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_what_is_missing_is_said_before_the_first_test_and_counted_at_the_end(tmp_path: pathlib.Path) -> None:
    lines = run(tmp_path, "-n2").splitlines()
    before = "\n".join(lines[: next(number for number, line in enumerate(lines) if "F" in line and "s" in line)])
    assert "6 tests" in before and "about 10 to 16 min on two cores" in before
    assert [each for each in BEFOREHAND if each not in "\n".join(lines)] == []
    assert lines[-1].startswith("1 passed, 1 failed, 5 skipped: 1 for want of "), lines[-1]
    assert lines[-1].endswith("; 2 further reasons (ARGS=-rs)")


def test_only_healthy_jobs_run_beside_the_loops_and_what_fails_so_is_in_a_table(tmp_path: pathlib.Path) -> None:
    told = tmp_path / "busy.jsonl"
    out = run(tmp_path, "-n0", "--busy=0123456789abcdef", f"--outcomes={told}", path=os.environ["PATH"])
    assert out.splitlines()[-1].startswith("0 passed, 1 failed")
    table = halves.busy_table(outcomes.read(told), "0123456789abcdef", "2026-01-01")
    assert table[0] == "beside two busy loops: 0 passed, 1 failed, 1 skipped"
    assert table[3].startswith("| 2026-01-01 | 0123456789ab | test_a.py::test_healthy | AssertionError: accused")


def test_the_loops_are_busy_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    begin = busy._loop
    monkeypatch.setattr(busy, "_loop", lambda *words: started.append(begin(*words)) or started[-1])
    loops = busy.Loops()
    loops.pytest_runtestloop()
    assert [each.poll() for each in started] == [None, None]
    loops.pytest_sessionfinish(None, 0)  # type: ignore[arg-type]
    assert [each.returncode for each in started] == [-9, -9]


def test_each_commit_draws_another_tenth() -> None:
    tests = [f"test_{number}" for number in range(40)]
    drawn = {commit: busy.draw(tests, commit) for commit in "abcdefgh"}
    assert {len(each) for each in drawn.values()} == {4} and len(set(map(tuple, drawn.values()))) == 8
    assert busy.draw(tests[::-1], "a") == drawn["a"] and sorted(busy.draw(tests, "all")) == sorted(tests)


def test_each_reason_that_ci_knows_says_how_to_get_what_is_missing() -> None:
    for row in yaml.safe_load(halves.KNOWN.read_text())["not_run"]:
        assert announcing.want(row["reason"])[1], row
    reasons = filter(None, (machine.docker_lack(), machine.slurm_lack()))
    assert {announcing.want(reason)[0] for reason in reasons} <= {"Docker", "Slurm"}


def test_a_group_has_one_worker_and_behind_a_long_test_waits_the_last_group_and_not_the_next() -> None:
    """Two workers are told their second group while the first goes on."""
    files = ["preflight/test_real_preflight", "cli/test_wheel", "log/test_a", "log/test_b"]
    files += ["faults/test_a", "backends/local/test_a"]
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
    assert told == {"a": [files[0], *files[4:]], "b": [files[1], files[3]]}, "faults go one after the other"
