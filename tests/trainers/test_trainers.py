"""What a workload becomes on the nodes, under any launcher, and how a kind of trainer is found."""

import base64
import importlib
import importlib.metadata
import json
import pathlib
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import harness.trainers
from harness import plugins
from harness.backends.contract import PLACEHOLDERS, Launch, fill_placeholders
from harness.errors import ScenarioError, UsageError
from harness.spec.scenario import parse_scenario
from harness.trainers import reference
from harness.trainers.contract import NODES_MAX, RANKS_PER_NODE_MAX, Workload, load_trainer, trainer_names
from harness.trainers.shared import placeholders, rendezvous_settings
from reference_trainer.options import Options

ECHO = """
from pydantic import Field
from harness.backends.contract import Launch
from harness.trainers.contract import Trainer


class Echo(Trainer):
    echo: str
    loud: bool = False

    def launch(self, workload, run_id, seed):
        return Launch(("echo", self.echo), workload.nodes, workload.ranks_per_node)

    def files(self):
        return []


TRAINER = Echo
"""


def workload(**given: Any) -> Workload:
    return Workload.model_validate(given)


def launched(**given: Any) -> Launch:
    given = {"steps": 60} | given
    return workload(**given).trainer.launch(workload(**given), "run-1", 7)


def after(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_reference_trainer_is_started_by_its_launcher_beside_a_store() -> None:
    launch = launched(nodes=3, min_nodes=2, ranks_per_node=4, steps=50, args=["--layers", "1"])
    text = " ".join(launch.command)
    assert (launch.nodes, launch.ranks_per_node) == (3, 4)
    assert "--nnodes 2:3 --nproc-per-node 4" in text and "--rdzv-id run-1" in text and "--seed 7" in text
    assert text.endswith("--layers 1") and "--data" not in text
    assert launch.control is not None and launch.control[2] == "reference_trainer.store"


def test_placeholders_work_in_its_environment_and_arguments() -> None:
    env = {"A": "{steps}", "B": "{index} {checkpoints}", "C": "{{steps}}"}
    launch = launched(env=env, args=["--x", "{nodes}"], nodes=3, steps=9)
    assert launch.env == {"A": "9", "C": "{steps}"} and launch.command[-1] == "3"
    assert launch.command[:2] == ("env", "B={index} {run_dir}/checkpoints") and launch.control is not None
    assert not any("index" in word for word in launch.control), "the store is on no node"


def test_a_checkpoint_store_of_its_own_is_started_before_the_rendezvous_store() -> None:
    launch = launched(checkpoint={"store": "s3"}, data={"shards": 3})
    assert launch.command[0] == "env" and "s3://checkpoints/job" in launch.command and "--data" in launch.command
    assert launch.control is not None
    assert launch.control.index("harness.object_store.s3_store") < launch.control.index("reference_trainer.store")


@pytest.mark.parametrize(
    "trainer",
    [
        "reference",
        {"command": ["python", "train.py"]},
        {"command": ["sh", "-c", 'exec python3 train.py "$@"', "sh"]},
        {"command": ["bash", "-eu", "train.sh", "-c", "settings.yaml"]},
        {"module": "package.train", "args": ["--epochs", "1"]},
        *({kind: "train.py", "args": ["--epochs", "1"]} for kind in ("torchrun", "accelerate", "deepspeed")),
    ],
    ids=str,
)
@pytest.mark.parametrize("store", ["directory", "s3"])
def test_further_words_stand_at_the_end_of_what_each_trainer_is_given(trainer: object, store: str) -> None:
    given = workload(trainer=trainer, nodes=2, checkpoint={"store": store})
    further = given.trainer.also_with(given, ["--num-workers", "3"])
    before, after = (each.trainer.launch(each, "run-1", 7) for each in (given, further))
    assert after.command == (*before.command, "--num-workers", "3") and after.control == before.control


@pytest.mark.parametrize("shell", ["sh -c", "/bin/bash -lc", "env A=1 bash -c", "bash -euo pipefail -c", "sh -ce"])
@pytest.mark.parametrize(
    "script", [["exec python3 train.py --steps 5"], ["exec train.py", "sh"], ['exec train.py "$@"']]
)
def test_a_shells_script_hears_no_further_words(shell: str, script: list[str]) -> None:
    given = workload(trainer={"command": [*shell.split(), *script]})
    with pytest.raises(UsageError, match="hears no further words"):
        given.trainer.also_with(given, ["--num-workers", "3"])
    assert given.trainer.also_with(given, []) == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainer": "referense"}, r"unknown trainer; choose one of: \{accelerate: …\}, \{command: …\}, .*reference"),
        ({"trainer": ["train.py"]}, "unknown trainer; choose one of"),
        ({"trainer": {"comand": ["x"]}}, "unknown trainer; choose one of"),
        ({"trainer": {"command": []}}, "at least 1 item"),
        ({"trainer": {"command": ["a\0b"]}}, "NUL"),
        ({"trainer": {"command": ["a"], "env": {"A=B": "1"}}}, "pattern"),
        ({"trainer": None}, "unknown trainer"),
        *(({name: size}, "than or equal to") for name, size in (("nodes", 10**9), ("nodes", 0), ("steps", 10**12))),
        ({"ranks_per_node": 10**9}, "than or equal to"),
    ],
)
def test_what_is_no_trainer_or_out_of_bounds_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        workload(**given)


def test_an_unknown_name_names_those_there_are_and_each_option_is_one_word() -> None:
    with pytest.raises(UsageError, match=r"unknown trainer 'nope'; choose one of: accelerate, .*reference, torchrun"):
        load_trainer("nope")
    assert rendezvous_settings.options({}).count(",") == len(rendezvous_settings.OPTIONS) - 1


def test_a_further_kind_is_one_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.setattr(harness.trainers, "__path__", [*harness.trainers.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert "echo" in trainer_names()
        given = workload(trainer={"echo": "hello"}, nodes=2)
        assert given.trainer.launch(given, "r", 1).command == ("echo", "hello")
        assert given.to_json()["trainer"] == {"echo": "hello", "loud": False}
        assert workload(**given.to_json()) == given
        jsonschema.validate({"trainer": {"echo": "hi"}}, Workload.model_json_schema())
    finally:
        sys.modules.pop("harness.trainers.echo", None)


@given(
    nodes=st.integers(1, NODES_MAX),
    least=st.one_of(st.none(), st.integers(1, NODES_MAX)),
    ranks=st.integers(1, RANKS_PER_NODE_MAX),
    steps=st.integers(1, 10**9),
    trainer=st.one_of(
        st.just("reference"), st.lists(st.text("ab{}-/ é"), min_size=1).map(lambda words: {"command": words})
    ),
    data=st.one_of(st.none(), st.builds(lambda shards: {"shards": shards}, st.integers(1, 1000))),
)
def test_a_workload_survives_json_and_knows_its_world(
    nodes: int, least: int | None, ranks: int, steps: int, trainer: Any, data: Any
) -> None:
    written = {"nodes": nodes, "ranks_per_node": ranks, "steps": steps, "trainer": trainer, "data": data}
    if least is not None and least <= nodes:
        written["min_nodes"] = least
    given = workload(**written)
    assert workload(**json.loads(json.dumps(given.to_json()))) == given
    assert given.min_nodes == (written.get("min_nodes") or nodes)
    assert given.world_size == nodes * ranks
    assert given.node_of(given.world_size - 1) == nodes - 1 and given.node_of(0) == 0
    assert given.on_nodes(1).world_size == ranks


@pytest.mark.parametrize(
    ("args", "nodes", "refused"),
    [
        ([], 16, False),
        ([], 17, True),
        (["--global-batch", "32"], 32, False),
        (["--global-batch=32"], 33, True),
        (["--global-batch", "8", "--global-batch", "64"], 33, False),
        (["--global-batch", "many"], 99, False),  # the trainer says what is wrong with it
    ],
)
def test_the_reference_trainer_needs_a_sequence_for_each_rank(args: list[str], nodes: int, refused: bool) -> None:
    work = Workload(nodes=nodes, args=args)
    problems = [(place, why) for place, why in work.trainer.problems(work) if place == ("args",)]
    assert bool(problems) == refused
    assert Options().global_batch == reference.GLOBAL_BATCH


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
    trainer: dict[str, Any] = {"torchrun": "-m pkg.train", "max_restarts": 9, "python": "/venv/bin/python"}
    more = {"rdzv_conf": {"last_call_timeout": 7}, "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}}
    launch = launched(trainer=trainer | more)
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
    several = str(launched(trainer={"module": "pkg.train"}, ranks_per_node=2).command)
    assert "RANK" not in several.replace("NODE_RANK", "")


def test_the_environment_is_filled_too_and_what_only_a_node_knows_is_set_there() -> None:
    env = {"A": "{seed} {{seed}}", "B": "at {address}", "C": "{run_dir}/x", "TOKEN": "${TOKEN}"}
    trainer = {"command": ["train", "--to={checkpoints}", "{index}"], "env": env}
    launch = launched(trainer=trainer | {"control": ["store"]})
    ours = {"CHAOS_OBSERVE": "auto", "CHAOS_CHECKPOINTS": "checkpoints"}
    assert launch.env == {"A": "7 {seed}", "TOKEN": "${TOKEN}"} | ours
    assert launch.command == (
        *("env", "B=at {address}", "C={run_dir}/x"),
        *("train", "--to={run_dir}/checkpoints", "{index}"),
    )
    assert launch.control == ("env", "C={run_dir}/x", "store") and launched(trainer=trainer).control is None


def parsed(folder: pathlib.Path, workload: str) -> Workload:
    text = f"version: 1\nname: x\ntitle: X\nworkload: {workload}"
    return parse_scenario(text, str(folder / "x.yaml")).workload


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{trainer: {command: [a, '{stpes}']}}", ":4:35: workload.trainer.command.1: unknown placeholder {stpes}"),
        ("{trainer: {command: [a], env: {X: '{rank}'}}}", "workload.trainer.env.X: unknown placeholder {rank}"),
        ("{env: {X: '{rank}'}}", "workload.env.X: unknown placeholder {rank}"),
        ("{args: ['{scenario_dir}']}", "workload.args.0: {scenario_dir} is for other trainers"),
        ("{trainer: {torchrun: absent.py}}", "workload.trainer.torchrun: no file 'absent.py'"),
        ("{trainer: {command: [a, '{steps}']}}", "the workload has no steps: key"),
        ("{trainer: {command: [a]}, args: [b]}", "workload.args: is for the reference trainer"),
        ("{trainer: {command: [a]}, data: {shards: 2}}", "workload.data: makes files that this trainer does not read"),
        ("{trainer: {command: [a]}, checkpoint: {every_steps: 5}}", "write {checkpoint_every} into its arguments"),
        ("{trainer: {command: [a]}, checkpoint: {store: s3}}", "workload.checkpoint.store: is for the reference"),
        ("{trainer: {accelerate: /a.py}, nodes: 2, min_nodes: 1}", "starts a job on a fixed number of nodes"),
        ("{trainer: {command: [a], env: {PYTHONPATH: '{run_dir}'}}}", "may only hold what the plan knows"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_filled_is_an_error(
    tmp_path: pathlib.Path, workload: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        parsed(tmp_path, workload)
    assert message in str(refused.value)


NODES = dict.fromkeys(PLACEHOLDERS, "here")


def test_files_are_found_beside_the_scenario_and_keys_that_are_handed_on_are_not_ignored(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "train.py").touch()
    work = parsed(tmp_path, "{trainer: {torchrun: train.py, args: ['{scenario_dir}/data', '{\"a\": {}}', '${HOME}']}}")
    launch = work.trainer.launch(work, "run-1", 7)
    assert launch.command[-4:] == (f"{tmp_path}/train.py", f"{tmp_path}/data", '{"a": {}}', "${HOME}")
    assert work.trainer.files() == [tmp_path / "train.py"] and work.steps is None
    assert Workload.model_validate(json.loads(json.dumps(work.to_json()))) == work  # as a stored plan has it
    given = "{trainer: {command: [a, '{checkpoint_every}', --keep=3, '{data}']}, checkpoint: {every_steps: 5, keep: 3}, data: {}}"
    assert parsed(tmp_path, given).checkpoint.every_steps == 5


@given(st.text("{}$ab_", max_size=12))
def test_a_folder_of_any_name_is_that_folder(text: str) -> None:
    """Whatever a folder is called, filling it in leaves its name as it is."""
    if "{{" not in text:
        known = placeholders.fill(["{scenario_dir}"], {"scenario_dir": placeholders.escaped(text)})
        assert [*fill_placeholders(known, NODES)] == [text]


@given(st.lists(st.sampled_from(["{index}", "{{index}}", "${index}", '{"a": {}}', "{}", "x"]), max_size=6))
def test_only_placeholders_are_filled(parts: list[str]) -> None:
    expected = {"{index}": "here", "{{index}}": "{index}"}
    (filled,) = fill_placeholders([" ".join(parts)], NODES)
    assert filled == " ".join(expected.get(part, part) for part in parts)


@pytest.mark.parametrize(
    ("installed", "told"), [(True, "unknown store 'S3'; .*s3"), (False, "is not installed here: pip install")]
)
def test_a_store_that_is_not_known_is_refused(installed: bool, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setattr(plugins, "installed", importlib.metadata.EntryPoints)
    plugins.entry_points.cache_clear()
    try:
        with pytest.raises(ValueError, match=told):
            workload(checkpoint={"store": "S3"})
    finally:
        plugins.entry_points.cache_clear()
