"""How long a job may take to start, and then may stand still."""

from __future__ import annotations

import pytest

from harness.errors import ScenarioError
from harness.plan.making import make_plan
from harness.plan.model import Abort, Plan
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
