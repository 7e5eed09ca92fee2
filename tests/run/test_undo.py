from __future__ import annotations

import json
import multiprocessing
import multiprocessing.synchronize
import os
import pathlib
import re
import stat
import subprocess
import time
from typing import Any
from unittest.mock import Mock

import pytest
from waiting import until

from harness.errors import FaultError
from harness.log.journal import JOURNAL, Journal, is_closed, is_running
from harness.run import undo

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACTION = "faults.rank_kill"


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr("harness.faults.rank_kill.UNDO", lambda name: calls.append(name), raising=False)
    return calls


def write(run_dir: pathlib.Path, *records: Any) -> pathlib.Path:
    run_dir.mkdir(exist_ok=True)
    path = run_dir / JOURNAL
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def open_record(name: str) -> dict[str, Any]:
    return {"undo": ACTION, "arguments": {"name": name}}


def test_what_is_open_is_durable_and_undone_last_first_and_then_closed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, removed: list[str]
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((tmp_path / JOURNAL).read_bytes()))
    journal = Journal(tmp_path)
    for name in ("first", "second"):
        journal.record(ACTION, {"name": name})
        assert json.loads(synced[-1].splitlines()[-1]) == open_record(name), "before anything is done"
    assert not is_closed(tmp_path) and is_running(tmp_path)
    undo.close(journal)
    assert removed == ["second", "first"] and synced[-1].endswith(b'{"closed": true}\n')
    assert is_closed(tmp_path) and not is_running(tmp_path) and not is_running(tmp_path / "gone")
    assert stat.S_IMODE((tmp_path / JOURNAL).stat().st_mode) == 0o600, "others do not see it"
    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert is_running(tmp_path), "any doubt means that it is alive"


def test_heal_leaves_running_and_closed_runs_alone(tmp_path: pathlib.Path, removed: list[str]) -> None:
    (tmp_path / "running").mkdir()
    running = Journal(tmp_path / "running")
    running.record(ACTION, {"name": "running"})
    with write(tmp_path / "dead", open_record("dead")).open("a") as torn:
        torn.write('{"undo": "tor')
    write(tmp_path / "closed", {"closed": True})
    assert undo.heal(tmp_path) == (["dead"], [])
    assert removed == ["dead"]
    assert undo.heal(tmp_path) == ([], [])
    undo.close(running)


def test_heal_finds_the_runs_of_a_matrix_and_nothing_that_a_node_may_write(
    tmp_path: pathlib.Path, removed: list[str]
) -> None:
    ours = ["matrix-a/base", "matrix-a/cells/001", "resume-a/base", "resume-a/repeat", "resume-a/resumed/20", ".x/kept"]
    nodes = ["run/checkpoints", "run/checkpoints/step_1", "run/events/node0", "resume-a/resumed/20/checkpoints"]
    for name in (*ours, *nodes):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, open_record(name))
    assert undo.heal(tmp_path)[1] == []
    assert sorted(removed) == sorted(ours)


def test_lines_that_are_no_records_keep_nothing_from_being_undone(tmp_path: pathlib.Path, removed: list[str]) -> None:
    path = write(tmp_path, [1], "text", None, open_record("good"), {"undo": ACTION, "arguments": 7})
    path.write_bytes(b"\xff\xfe\n" + b"[" * 100_000 + b"\n" + path.read_bytes())
    with pytest.raises(FaultError, match="name: Missing required argument"):
        undo.undo_open(tmp_path)
    assert removed == ["good"]


def test_one_undo_that_fails_does_not_keep_the_others_from_it(tmp_path: pathlib.Path, removed: list[str]) -> None:
    journal = Journal(tmp_path)
    journal.record(ACTION, {"name": "good"})
    journal.record("faults.not_there", {})
    with pytest.raises(FaultError, match="not_there"):
        undo.close(journal)
    assert removed == ["good"]
    assert not is_closed(tmp_path)


@pytest.mark.parametrize(
    "action", ["os:system", "os.system", "faults.shared.orders", "faults.oom", "node", "spec.scenario", "faults.", ""]
)
def test_only_what_is_in_the_list_can_be_named(tmp_path: pathlib.Path, action: str) -> None:
    write(tmp_path, {"undo": action, "arguments": {"command": "true"}})
    with pytest.raises(FaultError, match="unknown undo action"):
        undo.undo_open(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "/etc/passwd", "kept": "kept/a"},
        {"path": "../other/file", "kept": "kept/a"},
        {"path": "checkpoints/../../file", "kept": "kept/a"},
        {"path": "data/a", "kept": 7},
        {"path": "data/a"},
        {"path": "data/a", "kept": "kept/a", "run_dir": "/etc", "more": 1},
    ],
)
def test_arguments_are_checked_before_anything_is_called(tmp_path: pathlib.Path, arguments: dict[str, Any]) -> None:
    write(tmp_path, {"undo": "faults.data_corruption", "arguments": arguments})
    with pytest.raises(FaultError, match="the undo journal is wrong"):
        undo.undo_open(tmp_path)


@pytest.mark.parametrize("part", ["data", "kept"])
def test_what_is_put_back_stays_within_the_run(tmp_path: pathlib.Path, part: str) -> None:
    """Whoever can write in the run's folder may swap a part of the path for a link that leads out of it."""
    run_dir, outside = tmp_path / "run", tmp_path / "outside"
    for folder in (run_dir / "data", run_dir / "kept", outside):
        folder.mkdir(parents=True)
        (folder / "shard").write_text(folder.name)
    (run_dir / part).rename(run_dir / "moved")
    (run_dir / part).symlink_to(outside)
    write(run_dir, {"undo": "faults.data_corruption", "arguments": {"path": "data/shard", "kept": "kept/shard"}})
    with pytest.raises(FaultError, match="not a plain folder"):
        undo.undo_open(run_dir)
    assert (outside / "shard").read_text() == "outside"


def test_every_undo_that_the_harness_writes_down_is_there() -> None:
    source = "".join(file.read_text() for file in (ROOT / "harness" / "faults").rglob("*.py"))
    named = set(re.findall(r'context\.undo\(\s*"([a-z_.]+)"', source))
    assert named == {action for action in undo.actions() if action.startswith("faults.")} != set()
    assert "backends.local" in undo.actions()
    assert all(callable(undo.resolve(action)) for action in undo.actions())


# Whose journal is believed


@pytest.mark.parametrize("told", ["others can write it", "belongs to user 10001"])
@pytest.mark.parametrize("what", ["journal", "folder"])
def test_a_journal_that_others_may_have_written_is_refused(
    tmp_path: pathlib.Path, what: str, told: str, removed: list[str]
) -> None:
    path = write(tmp_path / "run", open_record("forged"))
    theirs = path if what == "journal" else path.parent
    if told.startswith("others"):
        theirs.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    else:
        os.chown(theirs, 10001, 10001)
    before = len(os.listdir("/proc/self/fd"))
    healed, failed = undo.heal(tmp_path)
    assert healed == [] and told in failed[0] and removed == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: pathlib.Path, removed: list[str]) -> None:
    for name, make in {
        "fifo": lambda path: os.mkfifo(path),
        "link": lambda path: path.symlink_to(write(tmp_path / "target", open_record("linked"))),
        "folder": lambda path: path.mkdir(),
    }.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / JOURNAL)
    healed, failed = undo.heal(tmp_path)
    assert healed == ["target"] and len(failed) == 3 and removed == ["linked"]


def test_the_reverter_tries_again_what_failed_once_and_leaves_alone_what_was_closed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def busy(name: str) -> None:
        tries.append(name)
        if len(tries) < 3:
            raise FaultError("the engine does not answer")

    monkeypatch.setattr("harness.faults.rank_kill.UNDO", busy, raising=False)
    monkeypatch.setattr(undo, "AGAIN_AFTER_S", (0.0, 0.0, 0.0))
    write(tmp_path, open_record("first"))
    with subprocess.Popen(["true"]) as harness:
        pidfd = os.pidfd_open(harness.pid)
        for _ in range(2):
            undo._revert_when_gone(tmp_path, pidfd)
            assert tries == ["first"] * 3 and is_closed(tmp_path)
    os.close(pidfd)


def harness_of(run_dir: pathlib.Path, ready: multiprocessing.synchronize.Event) -> None:
    """The undo here is the local backend's sweep for a run id that no process carries: harmless, but it is called."""
    journal = Journal(run_dir)
    journal.record("backends.local", {"run_id": "no-such-run", "environment": {}})
    undo.start_reverter(run_dir)
    ready.set()
    time.sleep(1000)


def test_the_reverter_undoes_after_sigkill_of_the_harness(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    harness = fork.Process(target=harness_of, args=(tmp_path, ready))
    harness.start()
    assert ready.wait() and not is_closed(tmp_path)
    harness.kill()
    harness.join()
    until(lambda: is_closed(tmp_path), (tmp_path / "logs" / "reverter.log").read_text)
