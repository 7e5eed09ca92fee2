"""How long a job may take to start, and then may stand still."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import ScenarioError
from harness.plan.making import make_plan
from harness.plan.model import Abort, Plan
from harness.run.job import RunningJob
from harness.run.live import LiveProgress
from harness.spec.scenario import parse_scenario

S = 10**9
HEAD = "version: 1\nname: x\ntitle: X\n"


def planned(text: str) -> Plan:
    return make_plan(parse_scenario(HEAD + text, "x.yaml"), 1, "local", "run")


def test_a_scenario_without_a_limit_has_one_that_its_start_widens() -> None:
    abort = planned("").abort
    assert (abort.if_not_started_for_ns, abort.idle_ns_max(5 * S), abort.idle_ns_max(50 * S)) == (
        600 * S,
        60 * S,
        150 * S,
    )


def test_the_scenarios_own_limit_holds_as_it_is() -> None:
    abort = planned("abort: {if_no_step_for: 60s, if_not_started_for: 20m}").abort
    assert (abort.if_not_started_for_ns, abort.idle_ns_max(50 * S)) == (1200 * S, 60 * S)


def test_a_plan_that_says_nothing_new_looks_as_before() -> None:
    old = {"if_no_step_for_ns": 60 * S, "wall_clock_ns": 600 * S}
    assert planned("abort: {if_no_step_for: 60s}").to_json()["abort"] == old
    assert Abort.model_validate(old).idle_ns_max(50 * S) == 60 * S
    widened = planned("").abort
    assert Abort.model_validate(widened.model_dump(mode="json")) == widened


def test_a_trigger_beyond_the_last_step_of_the_fault_free_run_is_an_error() -> None:
    fault = "{id: k, fault: rank_kill, when: {step: 90}, target: {rank: 0}}"
    plan = planned(f"workload: {{trainer: {{command: [a]}}}}\nfaults: [{fault}]")
    assert plan.workload.steps is None and plan.with_steps(91).workload.steps == 91
    with pytest.raises(ScenarioError, match="fault k: step 90 is never reached; the fault-free run did 90 steps"):
        plan.with_steps(90)


def test_who_ended_badly_is_named_when_the_job_is_given_up(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node1.1.log").write_text("step 7\nValueError: no such shard\n")
    progress = LiveProgress(last_step_ns=10)
    nodes = [SimpleNamespace(name="node1", incarnation=1)]
    job: Any = SimpleNamespace(progress=progress, run_dir=tmp_path, cluster=SimpleNamespace(nodes=nodes))

    def tell(code: int, now_ns: int, node: str = "node1", incarnation: int = 1) -> str:
        header = {"role": "agent", "node": node, "incarnation": incarnation}
        progress.absorb(header, {"event": "worker.exit", "code": code}, now_ns)
        return RunningJob._failed_worker(job)

    assert tell(0, 11) == ""
    said = "; before that a worker on node1 ended with 1: ValueError: no such shard (logs/node1.1.log)"
    assert tell(1, 12) == said
    assert tell(-15, 13) == said, "the launcher ends the others because of the first one"
    progress.last_step_ns = 20
    assert RunningJob._failed_worker(job) == "", "the job went on after it"
    assert tell(3, 21, "../../etc/passwd") == tell(3, 22, "node1", 2) == "", "a launcher may say anything"
