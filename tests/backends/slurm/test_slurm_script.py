"""What is asked of Slurm, compared whole; and what a job of Slurm says of itself, and when it ends by itself: read
without trusting what nodes put there."""

import asyncio
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends.contract import PLACEHOLDERS, Launch
from harness.backends.slurm.backend import EXITS, read_exits
from harness.backends.slurm.engine import Slurm, SlurmJob, _read_job
from harness.backends.slurm.script import render, shell_words
from harness.errors import BackendError, CannotRunError, UsageError
from harness.node import boot, slurm_storage, slurm_watch
from harness.node.slurm_watch import LOOK_S

SNAPSHOT = pathlib.Path(__file__).with_name("slurm_request.txt")
WORKLOAD = Launch(
    command=(
        "{python}",
        "train.py",
        "--address={address}",
        "--at",
        "{run_dir}/checkpoints",
        "--say",
        "it's {index} $HOME",
    ),
    nodes=4,
    ranks_per_node=8,
    env={"MODE": "test"},
    control=("{python}", "-m", "store", "--host", "{control}"),
)


def test_the_request_is_the_one_we_know() -> None:
    request = render(WORKLOAD)
    parts = ["sbatch \\", *(f"    {argument} \\" for argument in request.arguments), ""]
    parts += [f"--- {name}\n{text}" for name, text in request.files.items()]
    assert "\n".join(parts) == SNAPSHOT.read_text()
    assert request.env["MODE"] == "test"
    for name in ("batch.sh", "task.sh"):
        subprocess.run(["bash", "-n"], input=request.files[name], text=True, check=True)


def test_folders_that_can_be_disturbed_are_told_to_the_tasks_of_nodes_alone() -> None:
    files = render(dataclasses.replace(WORKLOAD, mounts=("checkpoints", "it's"))).files
    without = render(WORKLOAD).files
    assert files["task.sh"] == without["task.sh"].replace(
        "    -- checkpoints -- ", """    checkpoints 'it'"'"'s' -- checkpoints 'it'"'"'s' -- """
    )
    assert {**files, "task.sh": ""} == {**without, "task.sh": ""}


def test_placeholders_are_single_words_and_have_a_value() -> None:
    text = shell_words(["printf", "%s\n", "--at={address}:{index}", "{run_dir}"], PLACEHOLDERS)
    values = {"SLURM_NODEID": "3", "address": "a b", "CHAOS_RUN_DIR": "/r $x"}
    done = subprocess.run(["bash", "-c", text], env=values, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["--at=a b:3", "/r $x"]
    with pytest.raises(UsageError, match=r"\{index\}"):
        render(Launch(("true",), 1, 1, control=("store", "{index}")))


words = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(words)
def test_any_word_reaches_the_command_unchanged(command: list[str]) -> None:
    text = shell_words(["printf", r"%s\0", *command], PLACEHOLDERS)
    values = {"SLURM_NODEID": "3", "address": "a b", "control": "c;d", "CHAOS_RUN_DIR": "/r d", "CHAOS_PYTHON": "p"}
    done = subprocess.run(["bash", "-c", text], env=values, capture_output=True, check=True)
    shown = done.stdout.decode().split("\0")[:-1]
    assert shown == command or any("{" in word for word in command)


def test_jobs_are_read_from_old_and_new_slurm() -> None:
    """One that is completing has neither ended nor is it pending."""
    common = {"job_id": 7, "name": "x", "nodes": "n[1-2]", "state_reason": "None"}
    for data in (
        {"job_state": "RUNNING", "restart_cnt": 2},
        {"job_state": ["RUNNING"], "restart_cnt": {"set": True, "infinite": False, "number": 2}},
    ):
        assert _read_job(common | data) == SlurmJob(7, "x", ("RUNNING",), 2, "n[1-2]", "None")
    for states in ("COMPLETING", ["FAILED", "COMPLETING"], ["PENDING", "COMPLETING"]):
        job = _read_job(common | {"restart_cnt": 0, "job_state": states})
        assert (job.ended, job.pending, job.running) == (False, False, False), states


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
    """Also if a trainer that can write there puts a link where a record is made first."""
    precious = tmp_path / "precious"
    precious.write_text("0")
    (exits / "node0.1").symlink_to(precious)
    os.mkfifo(exits / "node1.1")
    (exits / "node2.1").mkdir()
    assert read_exits(tmp_path) == []
    (tmp_path / "logs").mkdir()
    (exits / ".node3.1").symlink_to(precious)
    env = os.environ | {"CHAOS_RUN_DIR": str(tmp_path), "CHAOS_INCARNATION": "1", "CHAOS_RUN_ID": "x"}
    command = boot.command(sys.executable, boot.place(), "harness.node.slurm_task", ["node3", "--", "--"])
    subprocess.run([*command, "sh", "-c", "exit 3"], env=env, capture_output=True)
    assert precious.read_text() == "0" and read_exits(tmp_path) == [("node3", 1, 3)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the watch takes for the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(slurm_watch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_job_waits_as_long_as_its_harness_lives(clock: list[float]) -> None:
    def sleep(seconds: float) -> None:
        clock[0] += seconds

    looks = iter([b"1", b"2", b"", b"2", b"3"])
    slurm_watch.wait(lambda: next(looks, b"3"), 4 * LOOK_S, sleep)
    assert clock == [100 + (4 + 4) * LOOK_S], "four looks after the last news, which was the fifth"
    slurm_watch.wait(lambda: b"", 5 * LOOK_S, sleep)
    assert clock == [100 + 13 * LOOK_S], "one that never wrote is dead"


def test_the_watch_runs_the_command_when_the_harness_is_silent(tmp_path: pathlib.Path) -> None:
    (tmp_path / "alive").write_text("1")
    words = [str(tmp_path / "alive"), "1.5", "echo", "over"]
    command = boot.command(sys.executable, boot.place(), "harness.node.slurm_watch", words)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "over\n" and "the harness has been silent for 1.5 s" in ended.stderr
    os.mkfifo(tmp_path / "pipe")
    assert slurm_watch.content(str(tmp_path / "pipe")) == b"", "it is not held by one"


def test_the_address_of_a_file_system_cannot_be_guessed_and_another_users_is_not_talked_to(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens at the address: the kernel tells who it is."""
    monkeypatch.setattr(boot, "place", lambda: str(tmp_path / "delivered.zip"))
    (tmp_path / "key").write_text("secret")
    first = slurm_storage._address("node0.1", "/run/store")
    assert first == slurm_storage._address("node0.1", "/run/store")
    (tmp_path / "key").write_text("another")
    assert slurm_storage._address("node0.1", "/run/store") != first
    monkeypatch.setattr(os, "getuid", lambda: 61234)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(slurm_storage._address("node0.1", "/run/store"))
        listener.listen()
        with pytest.raises(BackendError, match="another user of node0"):
            asyncio.run(slurm_storage.connect("node0.1", "/run/store"))


TREE = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[0-1]
"""  # of Slurm 22.05 with topology/tree
BLOCKS = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n3 BlockSize=2\n"
HOSTS = {"n[1-2]": "n1 n2", "n[3-4]": "n3 n4", "n[1-4]": "n1 n2 n3 n4", "n3": "n3"}


def slurm(answer: str, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    def run(self: Slurm, *command: str, **_: Any) -> str:
        return answer if command[-1] == "topology" else HOSTS[command[-1]].replace(" ", "\n")

    monkeypatch.setattr(Slurm, "run", run)
    return Slurm({}, (), "a Slurm")


@pytest.mark.parametrize(
    ("answer", "key", "labels"),
    [
        (TREE, "switch", ["leaf1", "leaf0", "leaf1"]),
        (TREE, "switch:1", ["spine"] * 3),
        (BLOCKS, "block", ["b2", "b1", ""]),
    ],
)
def test_slurm_tells_its_switches_and_blocks(
    answer: str, key: str, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slurm(answer, monkeypatch).labels(key, ["n3", "n1", "n4"]) == labels


@pytest.mark.parametrize(
    ("answer", "key", "told"),
    [("", "switch", "has no switch with nodes"), (TREE, "switch:2", "has no switch:2"), (TREE, "rack", "Slurm tells")],
)
def test_slurm_without_such_a_label_is_told(answer: str, key: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRunError, match=told):
        slurm(answer, monkeypatch).labels(key, ["n1"])
