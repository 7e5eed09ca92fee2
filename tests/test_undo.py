from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from harness import undo
from harness.errors import FaultError

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


def test_the_reverter_undoes_after_sigkill_of_the_harness(tmp_path: pathlib.Path) -> None:
    """The undo here is the local backend's sweep for a run id that no process carries: harmless, but it is called."""
    (tmp_path / "logs").mkdir()
    code = textwrap.dedent("""
        import pathlib, sys, time
        from harness import undo
        run_dir = pathlib.Path(sys.argv[1])
        journal = undo.Journal(run_dir)
        journal.record("harness.backends.local:undo", {"run_id": "no-such-run"})
        undo.start_reverter(run_dir)
        print("ready", flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as harness:
        assert harness.stdout is not None
        harness.stdout.readline()
        os.kill(harness.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while not undo.is_closed(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "logs" / "reverter.log").exists()
    assert undo.is_closed(tmp_path), (tmp_path / "logs" / "reverter.log").read_text()
