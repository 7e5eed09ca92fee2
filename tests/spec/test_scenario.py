from __future__ import annotations

import pathlib
import re
from typing import Any

import jsonschema
import pytest
import yaml

from harness.campaign.checked_files import load_scenario, score_bounds
from harness.errors import ScenarioError, UsageError
from harness.spec.scenario import find_scenario, parse_scenario
from harness.spec.schema import json_schema
from harness.trainers.command import CommandTrainer

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"

GOOD = """\
version: 1
name: one
title: One
workload:
  nodes: 2
  steps: 100
faults:
  - id: evict
    fault: preemption
    when: {step: 50}
    target: {node: any}
    notice: 5s
    replacement: {after: 5s}
expect:
  recovery_time: {max: 60s}
profiles:
  cluster:
    workload: {nodes: 8}
    faults: {evict: {notice: 120s}}
"""


AGAIN = "  - {id: evict, fault: node_loss, when: {step: 5}, target: {node: 0}}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "s.yaml", scores=score_bounds())
    return caught.value.problems


def test_a_profile_lies_over_it() -> None:
    plain = parse_scenario(GOOD, "s.yaml")
    assert (plain.workload.nodes, plain.faults[0].action.notice_s) == (2, 5.0)
    scenario = parse_scenario(GOOD, "s.yaml", "cluster")
    assert (scenario.workload.nodes, scenario.workload.steps) == (8, 100)
    assert scenario.faults[0].action.notice_s == 120.0
    assert scenario.faults[0].action.model_dump(mode="json")["replacement"] == {"after": "5s"}
    whole = GOOD.replace("{notice: 120s}", "{when: {after: 5s}, target: {node: 1}}")
    (fault,) = parse_scenario(whole, "s.yaml", "cluster").faults
    assert fault.when.step is None and str(fault.when.after) == "5s" and fault.target.node == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("nodes: 2", "noodes: 2", "s.yaml:5:3: workload.noodes: unknown key; did you mean nodes?"),
        ("nodes: 2", "nodes: 0", "s.yaml:5:3: workload.nodes: 0 is not allowed: it should be greater than or"),
        ("nodes: 2", "nodes: 2\n  min_nodes: 3", "min_nodes is 3, more than the 2 nodes there are"),
        ("nodes: 2", "nodes: 2\n  max_nodes: 3", "max_nodes is 3, more than the 2 nodes there are"),
        ("nodes: 2", "nodes: 2\n  max_nodes: 1\n  min_nodes: 2", "min_nodes is 2, more than max_nodes, 1"),
        ("nodes: 2", "nodes: 2\n  node_labels: {rack0: [0, 2]}", "rack0: unknown node 2; choose from 0 to 1"),
        ("nodes: 2", "nodes: 2\n  node_labels: {rack0: [1-0]}", "'1-0': a range goes up"),
        ("nodes: 2", "nodes: 2\n  node_labels: {rack0: 1}", "1 is no list of nodes"),
        ("nodes: 2", "nodes: 2\n  node_labels: {any: [1]}", "any: no name of a domain"),
        (
            "notice: 5s",
            "notice: 5",
            "s.yaml:12:5: faults.0.notice: 5 is not a duration: write a number and one of ns, us",
        ),
        ("notice: 5s", "notise: 5s", "s.yaml:12:5: faults.0.notise: unknown key; did you mean notice?"),
        ("preemption", "preemtion", "s.yaml:9:5: faults.0.fault: unknown fault 'preemtion'; did you mean preemption?"),
        ("{step: 50}", "{step: 50, after: 3s}", "s.yaml:10:5: faults.0.when: step + after is not a trigger; allowed:"),
        ("{step: 50}", "{every: 5s}", "need times:"),
        ("{step: 50}", "{following: other}", "unknown other fault 'other'"),
        ("{node: any}", "{rank: 1}", "preemption acts on a node"),
        ("{node: any}", "{node: some}", "s.yaml:11:14: faults.0.target.node"),
        ("recovery_time: {max: 60s}", "recovery: {max: 60s}", "s.yaml:15:3: expect.recovery: unknown score 'recovery'"),
        ("max: 60s", "max: 60", "s.yaml:15:19: expect.recovery_time.max: 60 is not a duration"),
        ("version: 1", "version: 2", "s.yaml:1:1: version: 2 is not allowed: it should be 1"),
        ("version: 1\n", "", "version: is missing: write version: 1"),
        ("\n  nodes: 2", "\n\tnodes: 2", "indent with spaces"),
        ("name: one", "name: my test", "name: 'my test' is not allowed: it has at most 63 lower-case letters, digits"),
        ("{node: any}", "any", "s.yaml:11:5: faults.0.target: write {node: any} or {rank: any}"),
        ("{step: 50}", "after step 50", "s.yaml:10:5: faults.0.when: write {step: 90}, {after: 30s}, or another"),
        ("{step: 50}", "{phase: checkpoint.wrte}", "when.phase: unknown phase 'checkpoint.wrte'; did you mean"),
        ("nodes: 2", "nodes: 2\n  trainer: my_train.py", "unknown trainer; write {torchrun: my_train.py}, or choose"),
        ("title: One\n", "", "s.yaml:1:1: title: is missing"),
        ("  nodes: 2", "\tnodes: 2", "s.yaml:5:1: not valid YAML"),
        (
            ": {max: 60s}",
            ".max: 60s",
            "s.yaml:15:3: expect.recovery_time.max: write recovery_time: {max: 60s}; recovery_time.max is",
        ),
        ("expect:", AGAIN + "expect:", "s.yaml:14:6: faults.1.id: 'evict' is already the id of another fault; ids are"),
    ],
)
def test_a_mistake_names_its_place_and_what_is_allowed(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(expected in problem for problem in found), found
    assert all(problem.startswith("s.yaml:") for problem in found)


def test_all_mistakes_are_told_at_once_and_those_of_a_profile_where_it_stands() -> None:
    found = problems(GOOD.replace("notice: 5s", "notice: 5").replace("max: 60s", "max: 60"))
    assert len(found) == 2
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(GOOD.replace("notice: 120s", "notice: 120"), "s.yaml", "cluster")
    assert caught.value.problems[0].startswith("s.yaml:19:22: faults.0.notice: 120 is not a duration")


def test_unknown_names_of_profiles_faults_and_files_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="unknown profile 'large'; choose one of: cluster"):
        parse_scenario(GOOD, "s.yaml", "large")
    with pytest.raises(ScenarioError, match=r"unknown fault 'evikt'; did you mean evict\?"):
        parse_scenario(GOOD.replace("faults: {evict: {notice", "faults: {evikt: {notice"), "s.yaml", "cluster")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_scenario(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match="did you mean spot-evict"):
        find_scenario("spot-evikt", SCENARIOS)


@pytest.fixture(scope="module")
def schema() -> Any:
    """Validates against the published schema, which takes a second to make."""
    made = json_schema(score_bounds())
    validator = jsonschema.validators.validator_for(made)
    validator.check_schema(made)
    return validator(made)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid_with_every_profile_and_the_schema(path: pathlib.Path, schema: Any) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert "cluster" in scenario.profiles
    for profile in scenario.profiles:
        load_scenario(path, profile)  # raises for what the trainer cannot do at that size
    schema.validate(yaml.safe_load(path.read_text()))


def test_the_schema_refuses_what_the_loader_refuses(schema: Any) -> None:
    data = yaml.safe_load(GOOD)
    schema.validate(data)
    data["faults"][0]["notise"] = "5s"
    with pytest.raises(jsonschema.ValidationError):
        schema.validate(data)


@pytest.mark.parametrize(
    ("expect", "expected"),
    [
        ("pace: off", ""),
        ("pace: {max_slowdown: 2}, checkpoint_rhythm: {min_percent: 40%}, effect_end: {}", ""),
        ("recovery_time: off", "expect.recovery_time: off is for what is judged by default: checkpoint_rhythm, "),
        ("pace: no", "expect.pace"),
        ("pace: {max_slowdown: 0.5}", "expect.pace.max_slowdown: 0.5 is not allowed"),
        ("gpus_in_use: {idle: 3}", "expect.gpus_in_use.idle: unknown key; choose one of: max_idle_steps"),
    ],
)
def test_what_is_judged_by_default_can_be_widened_and_switched_off(expect: str, expected: str, schema: Any) -> None:
    text = GOOD.replace("recovery_time: {max: 60s}", "").replace("expect:\n", f"expect: {{{expect}}}\n")
    if expected:
        assert any(expected in problem for problem in problems(text)), problems(text)
        return
    parse_scenario(text, "s.yaml")
    schema.validate(yaml.safe_load(text.replace(": off", ': "off"')))  # as YAML 1.2 reads it: `off` is a word


def test_a_trainer_declares_what_it_tells() -> None:
    text = GOOD.replace("  nodes: 2\n", "  trainer: {command: [x], tells: [steps, loss]}\n  nodes: 2\n")
    trainer = parse_scenario(text, "s.yaml").workload.trainer
    assert isinstance(trainer, CommandTrainer) and trainer.tells == ["steps", "loss"]
    wrong = text.replace("steps, loss", "steps, los")
    assert "'los' is not allowed: it should be 'steps', 'loss'" in problems(wrong)[0]


def test_faults_that_wait_for_each_other_are_refused() -> None:
    """They would never act, which the run would tell after its last step. A fault that only follows them is not named."""
    fault = "  - {{id: {}, fault: preemption, when: {{following: {}}}, target: {{node: any}}, notice: 5s}}\n"
    more = fault.format("b", "evict") + fault.format("c", "b")
    text = GOOD.replace("expect:\n", more + "expect:\n")
    assert parse_scenario(text, "s.yaml").faults[2].when.following == "b"
    first, second = problems(text.replace("when: {step: 50}", "when: {following: b}"))
    assert "faults.0.when.following: 'evict' would never act: it follows 'b', which follows 'evict'" in first
    assert "faults.1.when.following: 'b' would never act: it follows 'evict', which follows 'b'" in second


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{percent: 1000%}", "node.percent: '1000%' is not a percentage"),
        ("{not_rank: -1}", "node.not_rank: -1 is not allowed"),
        ("[0, x]", "node.1: 'x' is not allowed"),
        ("{cuont: 1}", "node: a mapping: write any, all, a number, a list of numbers, {count: 2}, {percent: 25} or"),
        ("{count: 1, percent: 3}", "node: a mapping: write any, all, a number, a list of numbers, {count: 2}"),
        ("1.5", "node: 1.5: write any, all, a number, a list"),
    ],
)
def test_a_wrong_target_has_one_message_on_the_form_that_was_meant(written: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(told)) as caught:
        parse_scenario(GOOD.replace("target: {node: any}", f"target: {{node: {written}}}"), "s.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_a_percentage_of_a_fault_may_have_its_sign() -> None:
    own = "    notice: 5s\n    replacement: {after: 5s}\n"
    for written in ("25", "25%"):
        text = GOOD.replace("fault: preemption", "fault: nic_loss").replace(own, f"    loss_percent: {written}\n")
        (fault,) = parse_scenario(text.split("profiles:")[0], "s.yaml").faults
        assert fault.action.model_dump()["loss_percent"] == 25
