"""What a Slurm job says of itself, and when it ends by itself: read without trusting what nodes put there."""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.backends.slurm.backend import EXITS, read_exits
from harness.errors import BackendError
from harness.node import boot, slurm_storage, slurm_watch
from harness.node.slurm_watch import LOOK_S


@pytest.fixture
def exits(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / EXITS
    folder.mkdir(parents=True)
    return folder


def test_every_end_is_read_once(tmp_path: pathlib.Path, exits: pathlib.Path) -> None:
    for name, code in (("node0.1", "0"), ("node1.1", "-9"), ("control.2", "143")):
        (exits / name).write_text(code)
    assert read_exits(tmp_path) == [("control", 2, 143), ("node0", 1, 0), ("node1", 1, -9)]
    assert read_exits(tmp_path, {("node0", 1), ("control", 2)}) == [("node1", 1, -9)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("node0", "0"),
        ("node0.x", "0"),
        ("node0.0", "0"),
        ("node0.1.1", "0"),
        ("harness.1", "0"),
        ("node0.99999999999", "0"),
        ("node0.\u0661", "0"),
        ("node0.1", ""),
        ("node0.1", "zero"),
        ("node0.1", "0\n0"),
        ("node0.1", "9" * 5000),
        ("node0.1", "\u0661"),
    ],
)
def test_what_is_no_record_is_passed_over(tmp_path: pathlib.Path, exits: pathlib.Path, name: str, content: str) -> None:
    (exits / name).write_text(content)
    (exits / "node1.1").write_text("0")
    assert read_exits(tmp_path) == [("node1", 1, 0)]


def test_no_link_is_followed_and_no_pipe_is_waited_for(tmp_path: pathlib.Path, exits: pathlib.Path) -> None:
    (tmp_path / "elsewhere").write_text("0")
    (exits / "node0.1").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(exits / "node1.1")
    (exits / "node2.1").mkdir()
    assert read_exits(tmp_path) == []


def test_the_record_of_an_exit_goes_through_no_link(tmp_path: pathlib.Path, exits: pathlib.Path) -> None:
    """A trainer that can write there puts one where the record is made first."""
    (tmp_path / "logs").mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (exits / ".node0.1").symlink_to(precious)
    env = os.environ | {"CHAOS_RUN_DIR": str(tmp_path), "CHAOS_INCARNATION": "1", "CHAOS_RUN_ID": "x"}
    command = boot.command(sys.executable, boot.place(), "harness.node.slurm_task", ["node0", "--", "--"])
    subprocess.run([*command, "sh", "-c", "exit 3"], env=env, capture_output=True)
    assert precious.read_text() == "precious"
    assert read_exits(tmp_path) == [("node0", 1, 3)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the watch takes for the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(slurm_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def pass_time(clock: list[float], seconds: float) -> None:
    clock[0] += seconds


def test_a_job_waits_as_long_as_its_harness_lives(clock: list[float]) -> None:
    looks = iter([b"1", b"2", b"", b"2", b"3"])
    slurm_watch.wait(lambda: next(looks, b"3"), 4 * LOOK_S, lambda seconds: pass_time(clock, seconds))
    assert clock == [100 + (4 + 4) * LOOK_S], "four looks after the last news, which was the fifth"


def test_a_harness_that_never_wrote_is_dead(clock: list[float]) -> None:
    slurm_watch.wait(lambda: b"", 5 * LOOK_S, lambda seconds: pass_time(clock, seconds))
    assert clock == [100 + 5 * LOOK_S]


def test_the_watch_runs_the_command_when_the_harness_is_silent(tmp_path: pathlib.Path) -> None:
    (tmp_path / "alive").write_text("1")
    words = [str(tmp_path / "alive"), "1.5", "echo", "over"]
    command = boot.command(sys.executable, boot.place(), "harness.node.slurm_watch", words)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "over\n" and "the harness has been silent for 1.5 s" in ended.stderr


def test_no_fifo_holds_the_watch(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "alive")
    assert slurm_watch.content(str(tmp_path / "alive")) == b""


# The file systems of a task


@pytest.fixture
def delivered(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "key").write_text("secret")
    monkeypatch.setattr(boot, "place", lambda: str(tmp_path / "delivered.zip"))
    return tmp_path


def test_the_address_of_a_file_system_cannot_be_guessed(delivered: pathlib.Path) -> None:
    first = slurm_storage._address("node0.1", "/run/store")
    assert first == slurm_storage._address("node0.1", "/run/store")
    (delivered / "key").write_text("another")
    assert slurm_storage._address("node0.1", "/run/store") != first


def test_another_users_file_system_is_not_talked_to(delivered: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens at the address: the kernel tells who it is."""
    monkeypatch.setattr(os, "getuid", lambda: 61234)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(slurm_storage._address("node0.1", "/run/store"))
        listener.listen()
        with pytest.raises(BackendError, match="another user of node0"):
            asyncio.run(slurm_storage.connect("node0.1", "/run/store"))
