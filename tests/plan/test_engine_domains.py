"""Failure domains by the engine's own labels: the nodes of each are known when the job has them."""

import pathlib

import pytest
import small_jobs
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.contract import Capability, Verb
from harness.backends.local.backend import BACKEND, LocalCluster
from harness.errors import CannotRunError, ScenarioError
from harness.evidence.logs import load_evidence
from harness.judge.facts.analysis import Analysis
from harness.judge.guarantees import fault_on_target
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import execute
from harness.spec.scenario import parse_scenario

ZONE = "topology.kubernetes.io/zone"


def plan(
    fault: str = "node_loss", label: str = "any", backend: str = "kubernetes", more: str = "", seed: int = 1
) -> Plan:
    text = f"""
version: 1
name: zone
title: A zone
workload: {{nodes: 4, min_nodes: 1, ranks_per_node: 2, node_labels_from: {ZONE}, trainer: {{command: [python, train.py]}}}}
faults: [{{id: f, fault: {fault}, when: {{step: 9}}, target: {{domain: {label}}}}}]
{more}
"""
    return make_plan(parse_scenario(text, "zone.yaml"), seed, backend, "zone-1")


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=4, max_size=4), st.integers(0, 5))
def test_a_domain_is_all_nodes_with_its_label_and_all_their_ranks(labels: list[str], seed: int) -> None:
    if not any(labels):
        return
    nodes, ranks = (plan(fault, seed=seed).placed(labels) for fault in ("node_loss", "rank_kill"))
    struck = nodes.faults[0].nodes()
    assert {labels[node] for node in struck} == {labels[min(struck)]} != {""}
    assert len(struck) == labels.count(labels[min(struck)])
    assert ranks.faults[0].nodes() == struck and len(ranks.faults[0].targets) == 2 * len(struck)
    assert nodes.workload.domain(struck).startswith(labels[min(struck)])
    assert nodes == plan(seed=seed).placed(labels) == Plan.from_json(nodes.to_json())


def test_a_plan_is_stored_with_its_key_and_says_what_it_waits_for() -> None:
    before = plan(label="b")
    assert Plan.from_json(before.to_json()) == before and before.faults[0].targets == ()
    assert before.faults[0].in_words() == "node_loss on all nodes of the domain b"
    assert before.without_faults("x").workload.node_labels_from == ""
    assert "domain" not in before.placed(["a", "b", "b", ""]).to_json()["faults"][0]


@pytest.mark.parametrize(
    ("label", "labels", "more", "told"),
    [
        ("rack9", ["a", "b", "b", ""], "", f"fault f: no node of the job has {ZONE}=rack9; their labels: a, b"),
        ("any", [""] * 4, "", f"no node of the job has {ZONE}=any; their labels: none"),
        ("b", ["a", "b", "b", ""], "limits: {nodes_at_once: 1}", "acts on 2 nodes; limits: nodes_at_once is 1"),
    ],
)
def test_a_domain_that_the_job_does_not_have_is_refused(label: str, labels: list[str], more: str, told: str) -> None:
    with pytest.raises(CannotRunError) as refusal:
        plan(label=label, more=more).placed(labels)
    assert told in str(refusal.value)


def test_a_backend_without_labels_refuses_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Capability(True, "", frozenset(Verb))
    with pytest.raises(CannotRunError, match=r"engine labels no nodes: write workload: \{node_labels"):
        check_capabilities(plan(backend="local"), everything)
    monkeypatch.setattr(BACKEND, "labels", True)
    check_capabilities(plan(backend="local"), everything)


def test_the_labels_of_a_node_have_one_source() -> None:
    text = "version: 1\nname: x\ntitle: X\nworkload: {nodes: 2, node_labels: {a: [0]}, node_labels_from: b}\n"
    with pytest.raises(ScenarioError, match="not both"):
        parse_scenario(text, "x.yaml")


@pytest.mark.slow
def test_a_real_job_is_struck_where_its_engine_has_placed_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log has the plan with the nodes of the domain, and the judge finds that those were struck."""
    monkeypatch.setattr(LocalCluster, "node_labels", lambda self, key: ["a", "b", "b"], raising=False)
    data = small_jobs.job(
        "zone", small_jobs.light(60), small_jobs.fault("f", "rank_kill", {"step": 9}), steps=60, node_labels_from="zone"
    ).to_json()
    data["workload"] |= {"nodes": 3, "max_nodes": 3, "min_nodes": 3}
    data["faults"][0] |= {"targets": [], "domain": "b"}
    execute(Plan.from_json(data), tmp_path / "run", BACKEND)
    struck = small_jobs.told(tmp_path / "run", "fault.injected")[0]
    assert [(each["node"], each["rank"]) for each in struck["targets"]] == [("node1", 1), ("node2", 2)]
    evidence = load_evidence(tmp_path / "run")
    assert evidence.run.plan["workload"]["node_labels"] == {"a": [0], "b": [1, 2]}
    assert not list(fault_on_target.GUARANTEE.breaches(Analysis.of(evidence)))
