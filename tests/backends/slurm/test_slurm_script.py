"""What is submitted to Slurm: pure, compared whole, and safe against any word in a command."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends.contract import PLACEHOLDERS, Launch
from harness.backends.slurm.engine import SlurmJob, _read_job
from harness.backends.slurm.script import render, shell_words
from harness.errors import UsageError

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


def test_folders_that_can_be_disturbed_are_told_to_the_tasks_of_nodes_alone() -> None:
    files = render(dataclasses.replace(WORKLOAD, mounts=("checkpoints", "it's"))).files
    without = render(WORKLOAD).files
    assert files["task.sh"] == without["task.sh"].replace(
        "    -- checkpoints -- ", """    checkpoints 'it'"'"'s' -- checkpoints 'it'"'"'s' -- """
    )
    assert {**files, "task.sh": ""} == {**without, "task.sh": ""}


def test_rendering_is_pure() -> None:
    assert render(WORKLOAD) == render(WORKLOAD)
    assert str(pathlib.Path.cwd()) not in repr(render(WORKLOAD))


def test_the_scripts_are_valid_shell() -> None:
    files = render(WORKLOAD).files
    for name in ("batch.sh", "task.sh"):
        subprocess.run(["bash", "-n"], input=files[name], text=True, check=True)


def test_a_placeholder_without_a_value_is_refused() -> None:
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


def test_placeholders_are_single_words_whatever_they_hold() -> None:
    text = shell_words(["printf", "%s\n", "--at={address}:{index}", "{run_dir}"], PLACEHOLDERS)
    values = {"SLURM_NODEID": "3", "address": "a b", "CHAOS_RUN_DIR": "/r $x"}
    done = subprocess.run(["bash", "-c", text], env=values, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["--at=a b:3", "/r $x"]


@pytest.mark.parametrize(
    "data",
    [
        {"job_state": "RUNNING", "restart_cnt": 2},
        {"job_state": ["RUNNING"], "restart_cnt": {"set": True, "infinite": False, "number": 2}},
    ],
    ids=["22.05", "24.05"],
)
def test_jobs_are_read_from_old_and_new_slurm(data: dict[str, object]) -> None:
    common = {"job_id": 7, "name": "x", "nodes": "n[1-2]", "state_reason": "None"}
    assert _read_job(common | data) == SlurmJob(7, "x", ("RUNNING",), 2, "n[1-2]", "None")


def test_a_completing_job_has_neither_ended_nor_is_it_pending() -> None:
    common = {"job_id": 7, "name": "x", "nodes": "n1", "restart_cnt": 0}
    for states in ("COMPLETING", ["FAILED", "COMPLETING"], ["PENDING", "COMPLETING"]):
        job = _read_job(common | {"job_state": states})
        assert (job.ended, job.pending, job.running) == (False, False, False), states
