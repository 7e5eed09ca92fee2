"""What a script becomes under the launchers that people use, and which words of a scenario are filled in."""

from __future__ import annotations

import base64
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.contract import PLACEHOLDERS, Launch, fill_placeholders
from harness.errors import ScenarioError
from harness.spec.scenario import parse_scenario
from harness.trainers.contract import Workload
from harness.trainers.shared import placeholders, rendezvous

HEAD = "version: 1\nname: x\ntitle: X\n"


def launched(**given: Any) -> Launch:
    workload = Workload.model_validate({"steps": 60, **given})
    return workload.trainer.launch(workload, "run-1", 7)


def after(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_torchrun_meets_at_a_store_beside_the_nodes() -> None:
    launch = launched(trainer={"torchrun": "/app/train.py", "args": ["--n", "{steps}"]}, nodes=3, min_nodes=2)
    command = launch.command
    assert command[:3] == ("{python}", "-m", "torch.distributed.run") and command[-3:] == ("/app/train.py", "--n", "60")
    assert (after(command, "--nnodes"), after(command, "--nproc-per-node")) == ("2:3", "1")
    assert (after(command, "--rdzv-endpoint"), after(command, "--local-addr")) == ("{control}:29400", "{address}")
    assert "is_host=0" in after(command, "--rdzv-conf").split(",")
    assert launch.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert launch.control is not None and launch.control[-2:] == ("{control}", "29400")


def test_what_the_scenario_says_wins() -> None:
    trainer = {
        "torchrun": "-m pkg.train",
        "max_restarts": 9,
        "python": "/venv/bin/python",
        "rdzv_conf": {"last_call_timeout": 7},
        "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
    }
    launch = launched(trainer=trainer)
    assert launch.command[0] == "/venv/bin/python" == (launch.control or ("",))[0]
    assert launch.command[-2:] == ("-m", "pkg.train") and after(launch.command, "--max-restarts") == "9"
    assert "last_call_timeout=7" in after(launch.command, "--rdzv-conf")
    assert launch.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "0"


def test_accelerate_is_told_what_it_has_no_option_for_by_variables() -> None:
    launch = launched(trainer={"accelerate": "/app/train.py"}, nodes=2, ranks_per_node=2)
    assert launch.command[:3] == ("env", "PET_LOCAL_ADDR={address}", "{python}")
    assert launch.env["PET_RDZV_ID"] == "run-1"
    assert (after(launch.command, "--num_machines"), after(launch.command, "--num_processes")) == ("2", "4")
    assert launch.control is not None and launch.control[0] == "{python}"  # it has no address of a node


def test_deepspeed_knows_every_node_and_its_ranks() -> None:
    launch = launched(trainer={"deepspeed": "-m pkg.train", "local_rank_arg": False}, nodes=2, ranks_per_node=2)
    world = next(word for word in launch.command if word.startswith("--world_info=")).removeprefix("--world_info=")
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node0": [0, 1], "node1": [0, 1]}
    assert launch.command[-3:] == ("--no_local_rank", "--module", "pkg.train") and launch.control is None


def test_a_module_finds_the_variables_of_its_world() -> None:
    launch = launched(trainer={"module": "pkg.train"}, nodes=2)
    assert launch.command[-3:] == ("{python}", "-m", "pkg.train")
    assert {"MASTER_ADDR={head}", "RANK={index}"} <= set(launch.command)
    assert (launch.env["WORLD_SIZE"], launch.env["LOCAL_RANK"]) == ("2", "0")
    assert "RANK" not in str(launched(trainer={"module": "pkg.train"}, ranks_per_node=2).command).replace(
        "NODE_RANK", ""
    )


def test_the_environment_is_filled_too_and_what_only_a_node_knows_is_set_there() -> None:
    env = {"A": "{seed} {{seed}}", "B": "at {address}", "C": "{run_dir}/x", "TOKEN": "${TOKEN}"}
    trainer = {"command": ["train", "--to={checkpoints}"], "control": ["store"], "env": env}
    launch = launched(trainer=trainer)
    assert launch.env == {"A": "7 {seed}", "TOKEN": "${TOKEN}", "CHAOS_OBSERVE": "auto"}
    assert launch.command == ("env", "B=at {address}", "C={run_dir}/x", "train", "--to={run_dir}/checkpoints")
    assert launch.control == ("env", "C={run_dir}/x", "store")


def parsed(folder: pathlib.Path, workload: str) -> Workload:
    return parse_scenario(f"{HEAD}workload: {workload}", str(folder / "x.yaml")).workload


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            "{trainer: {command: [a, '{stpes}']}}",
            "x.yaml:4:35: workload.trainer.command.1: unknown placeholder {stpes}",
        ),
        ("{trainer: {command: [a], env: {X: '{rank}'}}}", "workload.trainer.env.X: unknown placeholder {rank}"),
        ("{trainer: {torchrun: absent.py}}", "workload.trainer.torchrun: no file 'absent.py'"),
        ("{trainer: {command: [a, '{steps}']}}", "the workload has no steps: key"),
        ("{trainer: {command: [a]}, args: [b]}", "workload.args: is for the reference trainer"),
        ("{trainer: {command: [a]}, data: {shards: 2}}", "workload.data: makes files that this trainer does not read"),
        ("{trainer: {command: [a]}, checkpoint: {every_steps: 5}}", "write {checkpoint_every} into its arguments"),
        ("{trainer: {command: [a]}, checkpoint: {store: s3}}", "workload.checkpoint.store: is for the reference"),
        (
            "{trainer: {accelerate: /a.py}, nodes: 2, min_nodes: 1}",
            "accelerate starts a job on a fixed number of nodes",
        ),
        ("{trainer: {command: [a], env: {PYTHONPATH: '{run_dir}'}}}", "may only hold what the plan knows"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_filled_is_an_error(
    tmp_path: pathlib.Path, workload: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        parsed(tmp_path, workload)
    assert message in str(refused.value)


def test_files_are_found_beside_the_scenario(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").touch()
    work = parsed(tmp_path, "{trainer: {torchrun: train.py, args: ['{scenario_dir}/data', '{\"a\": {}}', '${HOME}']}}")
    launch = work.trainer.launch(work, "run-1", 7)
    assert launch.command[-4:] == (f"{tmp_path}/train.py", f"{tmp_path}/data", '{"a": {}}', "${HOME}")
    assert work.trainer.files() == [tmp_path / "train.py"]
    assert Workload.model_validate(json.loads(json.dumps(work.to_json()))) == work  # as a stored plan has it
    assert work.steps is None


def test_a_key_that_is_handed_on_is_none_that_is_ignored(tmp_path: pathlib.Path) -> None:
    text = "{trainer: {command: [a, '{checkpoint_every}', --keep=3, '{data}']}, checkpoint: {every_steps: 5, keep: 3}, data: {}}"
    assert parsed(tmp_path, text).checkpoint.every_steps == 5


NODES = dict.fromkeys(PLACEHOLDERS, "here")


@given(st.text("{}$ab_", max_size=12))
def test_a_folder_of_any_name_is_that_folder(text: str) -> None:
    """Whatever a folder is called, filling it in leaves its name as it is."""
    if "{{" not in text:
        (filled,) = fill_placeholders(
            placeholders.fill(["{scenario_dir}"], {"scenario_dir": placeholders.escaped(text)}), NODES
        )
        assert filled == text


@given(st.lists(st.sampled_from(["{index}", "{{index}}", "${index}", '{"a": {}}', "{}", "x"]), max_size=6))
def test_only_placeholders_are_filled(parts: list[str]) -> None:
    expected = {"{index}": "here", "{{index}}": "{index}"}
    (filled,) = fill_placeholders([" ".join(parts)], NODES)
    assert filled == " ".join(expected.get(part, part) for part in parts)


def test_every_option_of_the_rendezvous_is_one_word() -> None:
    assert rendezvous.options({}).count(",") == len(rendezvous.OPTIONS) - 1
