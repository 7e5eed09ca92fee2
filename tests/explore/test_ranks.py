"""Which jobs restore in forked ranks, and what each rank is told."""

import pathlib
from typing import Any

import pytest
from small_jobs import job

from harness.explore.restores import ranks_of
from harness.plan.run_plan import Plan

PLANTED = str(pathlib.Path(__file__).with_name("planted_trainer.py"))


def plan(trainer: object, **workload: Any) -> Plan:
    return job("ranks", [], trainer=trainer, steps=20, **workload)


def test_each_rank_of_the_reference_trainer_is_told_its_place() -> None:
    found = ranks_of(plan("reference", nodes=2, ranks_per_node=2))
    assert not isinstance(found, str)
    places = [[each["env"][name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")] for each in found.each]
    assert places == [[*"0004"], [*"1104"], [*"2014"], [*"3114"]]
    words = found.each[0]["words"]
    assert words[:2] == ["-m", "reference_trainer.train"] and "@RUN_DIR@/checkpoints" in words
    assert found.threads == {"OMP_NUM_THREADS": "1"}  # as its launcher has it: losses must be the same bits


def test_a_script_keeps_its_words_and_variables() -> None:
    command = ["{python}", "-S", PLANTED, "{checkpoints}", "{steps}", "careful"]
    found = ranks_of(plan({"command": command, "env": {"PLACE": "{run_dir}/{index}"}}, nodes=1))
    assert not isinstance(found, str)
    (rank,) = found.each
    assert rank["words"] == [PLANTED, "@RUN_DIR@/checkpoints", "20", "careful"]
    assert rank["env"]["PLACE"] == "@RUN_DIR@/0" and "RANK" not in rank["env"]
    assert rank["env"]["CHAOS_EVENTS"].startswith("@RUN_DIR@/")


@pytest.mark.parametrize(
    ("command", "nodes", "why"),
    [
        (["sh", "-c", f"python {PLANTED}"], 1, "no Python script"),
        (["{python}", "-c", "print()"], 1, "no Python script"),
        (["{python}", PLANTED], 2, "launcher is not known"),
    ],
)
def test_any_other_job_restarts_as_a_whole(command: list[str], nodes: int, why: str) -> None:
    found = ranks_of(plan({"command": command}, nodes=nodes))
    assert isinstance(found, str) and why in found


def test_a_script_that_tells_nothing_is_observed_and_one_that_must_not_be_restarts_as_a_whole(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "train.py").write_text("print()")
    trainer = {"command": ["{python}", str(tmp_path / "train.py")]}
    found = ranks_of(plan(trainer, nodes=1))
    assert not isinstance(found, str) and found.observed
    assert "not told" in str(ranks_of(plan(trainer | {"observe": "off"}, nodes=1)))
