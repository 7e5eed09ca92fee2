from __future__ import annotations

from typing import Any

import pytest
import yaml

from harness.backends.contract import Capability, Verb
from harness.cli.scenarios import explanation
from harness.errors import CannotRunError, ScenarioError
from harness.faults.contract import Target
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan, When
from harness.spec.scenario import Scenario, parse_scenario

ALL_VERBS = Capability(True, "", frozenset(Verb))


MANY = ["--global-batch", "1000000"]  # a sequence for each rank of any of these jobs


def scenario(faults: list[dict[str, Any]], limits: dict[str, Any] | None = None, **workload: Any) -> Scenario:
    job = {"nodes": 4, "ranks_per_node": 2, "args": MANY} | workload
    data = {"version": 1, "name": "x", "title": "X", "workload": job, "limits": limits or {}, "faults": faults}
    return parse_scenario(yaml.safe_dump(data), "x.yaml")


def plan_of(faults: list[dict[str, Any]], seed: int = 1, **workload: Any) -> Plan:
    return make_plan(scenario(faults, **workload), seed, "local", "run")


def kill(target: Any, when: Any = None, identity: str = "a") -> dict[str, Any]:
    return {"id": identity, "fault": "rank_kill", "when": when or {"step": 5}, "target": {"rank": target}}


def loss(target: Any) -> dict[str, Any]:
    return {"id": "a", "fault": "node_loss", "when": {"step": 5}, "target": {"node": target}}


def test_one_fault_more_changes_no_other_and_the_fault_free_run_has_none() -> None:
    alone = plan_of([kill("any")]).faults[0]
    beside = plan_of([kill("any", identity="b"), kill("any")]).faults[1]
    assert alone == beside
    plan = plan_of([kill("any")])
    fault_free = plan.without_faults("fault_free")
    assert fault_free.faults == () and fault_free.workload == plan.workload and fault_free.seed == plan.seed
    assert plan.without_faults("small", nodes=2).workload.world_size == 4


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        ("any", 1),
        ("all", 8),
        (3, 1),
        ({"count": 2}, 2),
        ({"percent": 25}, 2),
        ({"percent": 1}, 1),
        ({"percent": 69}, 6),
        ({"not_rank": 0}, 1),
    ],
)
def test_targets_resolve_to_ranks_and_their_nodes(selector: Any, count: int) -> None:
    (fault,) = plan_of([kill(selector)]).faults
    assert len(fault.targets) == count
    assert all(target.node_index == (target.rank or 0) // 2 for target in fault.targets)
    if selector == {"not_rank": 0}:
        assert fault.targets[0].rank != 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (kill(8), "unknown rank 8; choose one of: 0 to 7"),
        (kill({"count": 9}), "9 ranks asked for; there are 8"),
        (kill("any", {"step": 200}), "^x.yaml:6:3: faults.0.when: fault a: step 200 is never reached"),
        (loss(4), "unknown node 4; choose one of: 0 to 3"),
        (loss({"count": 5}), "5 nodes asked for; there are 4"),
    ],
)
def test_what_cannot_be_is_refused(fault: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        plan_of([fault])
    with pytest.raises(ScenarioError, match="seed: Input should be less than"):
        plan_of([kill(0)], seed=2**64)


def test_all_but_a_rank_and_its_node() -> None:
    chosen = {plan_of([kill({"not_rank": 3})], seed).faults[0].targets[0].rank for seed in range(60)}
    assert chosen == {0, 1, 2, 4, 5, 6, 7}
    nodes = {plan_of([loss({"not_rank": 3})], seed).faults[0].targets[0].node_index for seed in range(40)}
    assert nodes == {0, 2, 3}
    with pytest.raises(ScenarioError, match="every rank has rank 0; none is left"):
        plan_of([kill({"not_rank": 0})], nodes=1, ranks_per_node=1)


def test_the_last_place_and_all_of_them_can_be_had() -> None:
    assert plan_of([kill(7)]).faults[0].targets == (Target(3, 7),)
    assert len(plan_of([kill({"count": 8})]).faults[0].targets) == 8
    assert plan_of([kill("any", {"step": 199})]).faults[0].when == When(step=199)
    assert len(plan_of([kill({"percent": 100})]).faults[0].targets) == 8
    assert len(plan_of([kill({"percent": 50})], nodes=100, ranks_per_node=4).faults[0].targets) == 200


def test_times_and_rates_unfold_into_single_faults() -> None:
    every = plan_of([kill("any", {"every": "10s", "times": 3})]).faults
    assert [fault.id for fault in every] == ["a.1", "a.2", "a.3"]
    assert [fault.when.after_ns for fault in every] == [10 * 10**9, 20 * 10**9, 30 * 10**9]
    rate = plan_of([kill("any", {"rate": "60/h", "times": 5})]).faults
    times = [after_ns for fault in rate if (after_ns := fault.when.after_ns)]
    assert times == sorted(times) and len(set(times)) == 5


def test_a_missing_verb_is_refused_with_its_reason() -> None:
    plan = plan_of([kill("any")])
    check_capabilities(plan, ALL_VERBS)
    lacking = Capability(True, "", frozenset(Verb) - {Verb.SIGNAL}, {Verb.SIGNAL: "signals are sold out"})
    with pytest.raises(CannotRunError, match=r"fault a \(rank_kill\) needs 'signal': signals are sold out"):
        check_capabilities(plan, lacking)
    with pytest.raises(CannotRunError, match="no namespaces here"):
        check_capabilities(plan, Capability(False, "no namespaces here", frozenset()))


def test_another_backend_that_has_the_verb_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Able:
        def probe(self) -> Capability:
            return ALL_VERBS

    monkeypatch.setattr("harness.plan.capabilities.backend_names", lambda: ["able", "local"])
    monkeypatch.setattr("harness.plan.capabilities.load_backend", lambda name: Able())
    lacking = Capability(True, "", frozenset())
    with pytest.raises(CannotRunError, match="backend local does not have it; backend able can do it here"):
        check_capabilities(plan_of([kill("any")]), lacking)
    monkeypatch.setattr("harness.plan.capabilities.backend_names", lambda: ["local"])
    with pytest.raises(CannotRunError, match=r"backend local does not have it$"):
        check_capabilities(plan_of([kill("any")]), lacking)


@pytest.mark.slow
def test_a_plan_of_too_much_is_refused_while_it_is_made() -> None:
    for faults, message in (
        ([kill("all", identity=name) for name in "ab"], "more than the 300,000 targets that are allowed in a plan"),
        ([kill(0, {"every": "1s", "times": 1000}, f"f{at}") for at in range(21)], "more than the 20,000 firings"),
    ):
        with pytest.raises(ScenarioError, match=message):
            plan_of(faults, nodes=4096, ranks_per_node=64)


@pytest.mark.parametrize("when", [{"every": "8760h", "times": 1000}, {"rate": "0.000000000001/h", "times": 3}])
def test_what_would_come_after_centuries_can_be_planned(when: dict[str, Any]) -> None:
    plan = plan_of([kill(0, when)])
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.faults[-1].when.after_ns == 2**63 - 1


def test_a_fault_is_built_once_and_each_injection_has_its_own() -> None:
    spec = scenario([kill(0)])
    plan = make_plan(spec, 1, "local", "run")
    assert plan.faults[0].action is spec.faults[0].action
    assert plan.faults[0].action.fresh() == plan.faults[0].action
    assert plan.faults[0].action.fresh() is not plan.faults[0].action


@pytest.mark.parametrize(
    ("written", "nodes", "allowed"),
    [(2, 8, 2), ("10%", 40, 4), ("10%", 39, 3), ("10%", 4, 1), ("100%", 4, 4), ("0.5%", 1000, 5), (None, 4, None)],
)
def test_the_blast_radius_may_be_a_percentage(written: object, nodes: int, allowed: int | None) -> None:
    limits = {"nodes_at_once": written} if written is not None else {}
    assert plan_of([], limits=limits, nodes=nodes).limits.nodes_at_once == allowed


def test_a_fault_beyond_the_blast_radius_is_refused() -> None:
    with pytest.raises(ScenarioError, match="acts on 3 nodes; limits: nodes_at_once is 2"):
        plan_of([loss({"count": 3})], limits={"nodes_at_once": 2})
    plan_of([loss({"count": 2})], limits={"nodes_at_once": 2})


@pytest.mark.parametrize(
    ("out", "drill", "duration", "told"),
    [
        ("ckpt", "", "", ["write {checkpoints} where it names its own folder", "Its duration, 60s, is the default"]),
        ("{checkpoints}", "", ", duration: 9s", []),
        ("ckpt", ", restore_drill: false", ", duration: 60s", []),
    ],
)
def test_what_a_first_user_does_not_expect_is_said(out: str, drill: str, duration: str, told: list[str]) -> None:
    """A command whose saves are not seen gets no restore drill; a fault without a duration has one all the same."""
    text = f"""
version: 1
name: own
title: Own
workload: {{trainer: {{command: [python, train.py, --out, "{out}"]}}, nodes: 1, steps: 99{drill}}}
faults: [{{id: k, fault: hang, when: {{step: 5}}, target: {{rank: 0}}{duration}}}]
"""
    spec = parse_scenario(text, "own.yaml")
    lines = "\n".join(explanation(spec, make_plan(spec, 1, "local", "own-1")))
    said = ("write {checkpoints} where it names its own folder", "Its duration, 60s, is the default")
    assert [each for each in said if each in lines] == told
