"""What a workload becomes on the nodes, and how a kind of trainer is found."""

from __future__ import annotations

import importlib
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
from harness.errors import UsageError
from harness.trainers import reference
from harness.trainers.contract import NODES_MAX, RANKS_PER_NODE_MAX, Workload, load_trainer, trainer_names
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


def test_the_reference_trainer_is_started_by_its_launcher_beside_a_store() -> None:
    launch = workload(nodes=3, min_nodes=2, ranks_per_node=4, steps=50, args=["--layers", "1"]).trainer.launch(
        workload(nodes=3, min_nodes=2, ranks_per_node=4, steps=50, args=["--layers", "1"]), "run-1", 7
    )
    text = " ".join(launch.command)
    assert (launch.nodes, launch.ranks_per_node) == (3, 4)
    assert "--nnodes 2:3 --nproc-per-node 4" in text and "--rdzv-id run-1" in text and "--seed 7" in text
    assert text.endswith("--layers 1") and "--data" not in text
    assert launch.control is not None and launch.control[2] == "reference_trainer.store"


def test_a_checkpoint_store_of_its_own_is_started_before_the_rendezvous_store() -> None:
    given = workload(checkpoint={"store": "s3"}, data={"shards": 3})
    launch = given.trainer.launch(given, "run-1", 7)
    assert launch.command[0] == "env" and "s3://checkpoints/job" in launch.command and "--data" in launch.command
    assert launch.control is not None
    assert launch.control.index("harness.node.object_store") < launch.control.index("reference_trainer.store")


def test_a_command_of_ones_own_is_taken_as_it_is() -> None:
    given = workload(trainer={"command": ["train", "{index}"], "env": {"A": "1"}}, nodes=2)
    launch = given.trainer.launch(given, "run-1", 7)
    assert (launch.command, launch.control, dict(launch.env)) == (
        ("train", "{index}"),
        None,
        {"A": "1", "CHAOS_OBSERVE": "auto"},
    )


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("referense", r"unknown trainer; choose one of: \{accelerate: …\}, \{command: …\}, .*reference"),
        (["train.py"], "unknown trainer; choose one of"),
        ({"comand": ["x"]}, "unknown trainer; choose one of"),
        ({"command": []}, "at least 1 item"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["a"], "env": {"A=B": "1"}}, "pattern"),
        (None, "unknown trainer"),
    ],
)
def test_what_is_no_trainer_is_refused_with_those_there_are(trainer: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        workload(trainer=trainer)


def test_an_unknown_name_names_those_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"unknown trainer 'nope'; choose one of: accelerate, command, .*reference, torchrun"
    ):
        load_trainer("nope")


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


@pytest.mark.parametrize("size", [{"nodes": 10**9}, {"ranks_per_node": 10**9}, {"nodes": 0}, {"steps": 10**12}])
def test_a_size_out_of_bounds_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="than or equal to"):
        workload(**size)


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
