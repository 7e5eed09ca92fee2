from __future__ import annotations

import json
import multiprocessing
import multiprocessing.synchronize
import os
import pathlib
import re
import subprocess
import time

import pytest

from harness.errors import FaultError
from harness.run import undo

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACTION = "harness.faults.rank_kill:remove_for_test"


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from harness.faults import rank_kill

    calls: list[str] = []
    monkeypatch.setattr(rank_kill, "remove_for_test", lambda name: calls.append(name), raising=False)
    return calls


def test_what_is_open_is_undone_last_first_and_then_closed(tmp_path: pathlib.Path, removed: list[str]) -> None:
    journal = undo.Journal(tmp_path)
    journal.record(ACTION, {"name": "first"})
    journal.record(ACTION, {"name": "second"})
    assert not undo.is_closed(tmp_path) and undo.is_running(tmp_path)
    journal.close()
    assert removed == ["second", "first"]
    assert undo.is_closed(tmp_path) and not undo.is_running(tmp_path)


def test_a_run_that_is_gone_is_not_running(tmp_path: pathlib.Path) -> None:
    assert not undo.is_running(tmp_path / "gone")


def test_heal_leaves_running_and_closed_runs_alone(tmp_path: pathlib.Path, removed: list[str]) -> None:
    for name in ("running", "dead", "closed"):
        (tmp_path / name).mkdir()
    running = undo.Journal(tmp_path / "running")
    running.record(ACTION, {"name": "running"})
    (tmp_path / "dead" / undo.JOURNAL).write_text(
        json.dumps({"undo": ACTION, "arguments": {"name": "dead"}}) + '\n{"undo": "tor'
    )
    (tmp_path / "closed" / undo.JOURNAL).write_text('{"closed": true}\n')
    assert undo.heal(tmp_path) == (["dead"], [])
    assert removed == ["dead"]
    assert undo.heal(tmp_path) == ([], [])
    running.close()


def test_one_undo_that_fails_does_not_keep_the_others_from_it(
    tmp_path: pathlib.Path, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = undo.Journal(tmp_path)
    journal.record(ACTION, {"name": "good"})
    journal.record("harness.faults.rank_kill:not_there", {})
    with pytest.raises(FaultError, match="not_there"):
        journal.close()
    assert removed == ["good"]
    assert not undo.is_closed(tmp_path)


def test_a_record_is_durable_before_anything_is_done(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((tmp_path / undo.JOURNAL).read_bytes()))
    journal = undo.Journal(tmp_path)
    journal.record(ACTION, {"name": "first"})
    assert json.loads(synced[-1]) == {"undo": ACTION, "arguments": {"name": "first"}}
    journal.close()
    assert removed == ["first"] and synced[-1].endswith(b'{"closed": true}\n')


def test_only_our_own_functions_are_called(tmp_path: pathlib.Path) -> None:
    (tmp_path / undo.JOURNAL).write_text(json.dumps({"undo": "os:system", "arguments": {"command": "true"}}) + "\n")
    with pytest.raises(FaultError, match="no undo function"):
        undo.undo_open(tmp_path)


def test_every_undo_that_the_harness_writes_down_is_there() -> None:
    source = "".join(file.read_text() for file in (ROOT / "harness").rglob("*.py"))
    named = set(re.findall(r'"(harness\.[a-z_.]+:[a-z_]+)"', source))
    named |= {f"harness.backends.{backend}.backend:undo" for backend in ("local", "docker", "slurm", "kubernetes")}
    assert len(named) >= 7 and all(callable(undo._resolve(action)) for action in named)


def harness_of(run_dir: pathlib.Path, ready: multiprocessing.synchronize.Event) -> None:
    """The undo here is the local backend's sweep for a run id that no process carries: harmless, but it is called."""
    journal = undo.Journal(run_dir)
    journal.record("harness.backends.local.backend:undo", {"run_id": "no-such-run"})
    undo.start_reverter(run_dir)
    ready.set()
    time.sleep(60)


def test_the_reverter_undoes_after_sigkill_of_the_harness(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    harness = fork.Process(target=harness_of, args=(tmp_path, ready))
    harness.start()
    assert ready.wait(20) and not undo.is_closed(tmp_path)
    harness.kill()
    harness.join()
    deadline = time.monotonic() + 20
    while not undo.is_closed(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert undo.is_closed(tmp_path), (tmp_path / "logs" / "reverter.log").read_text()


def test_the_reverter_leaves_alone_what_was_closed(tmp_path: pathlib.Path, removed: list[str]) -> None:
    journal = undo.Journal(tmp_path)
    journal.record(ACTION, {"name": "first"})
    journal.close()
    with subprocess.Popen(["true"]) as harness:
        pidfd = os.pidfd_open(harness.pid)
        undo._revert_when_gone(tmp_path, pidfd)
    assert removed == ["first"]
    (tmp_path / undo.JOURNAL).write_text(json.dumps({"undo": ACTION, "arguments": {"name": "open"}}) + "\n")
    undo._revert_when_gone(tmp_path, pidfd)
    os.close(pidfd)
    assert removed == ["first", "open"] and undo.is_closed(tmp_path)
