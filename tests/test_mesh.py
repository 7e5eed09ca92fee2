"""The mesh of a job: coordinates, who shares what, targets, and what ranks told of it."""

import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import Job, Outage, simulate

from harness.errors import ScenarioError
from harness.evidence import ranks
from harness.evidence.coordinates import elsewhere, new_layout, replicas
from harness.faults.contract import Target
from harness.mesh import Mesh
from harness.node.emitter import AXES, Axis
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.report import lanes
from harness.report.timeline_chart import timeline_chart
from harness.spec.scenario import parse_scenario
from harness.timeline import timeline

meshes = st.dictionaries(st.sampled_from(AXES), st.integers(1, 4), min_size=1, max_size=4).map(Mesh)


@given(meshes, st.data())
def test_a_rank_is_the_only_one_with_its_coordinates(mesh: Mesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    assert mesh.ranks(mesh.of(rank)) == [rank]
    for axis, others in mesh.beside(rank).items():
        assert sorted([*others, rank]) == [r for r in range(mesh.world_size) if _alike(mesh, r, rank, axis)]


def _alike(mesh: Mesh, one: int, other: int, but: Axis) -> bool:
    left, right = mesh.of(one), mesh.of(other)
    return all(left[axis] == right[axis] for axis in left if axis != but)


def plan(target: str, mesh: str = "{pp: 2, dp: 2, tp: 2}", fault: str = "rank_kill") -> Plan:
    return made(f"{{nodes: 2, ranks_per_node: 4, mesh: {mesh}, {TRAINER}}}", fault, target)


TRAINER = "trainer: {command: [python, train.py]}"


def made(workload: str, fault: str, target: str) -> Plan:
    faults = f"[{{id: f, fault: {fault}, when: {{step: 9}}, target: {target}}}]"
    text = f"version: 1\nname: mesh\ntitle: A mesh\nworkload: {workload}\nfaults: {faults}\n"
    return make_plan(parse_scenario(text, "mesh.yaml"), 1, "local", "mesh-1")


@pytest.mark.parametrize(
    "target, struck",
    [
        ("{tp: 0}", [0, 2, 4, 6]),
        ("{pp: last}", [4, 5, 6, 7]),
        ("{dp: 1}", [2, 3, 6, 7]),
        ("{pp: last, dp: 0, tp: 1}", [5]),
    ],
)
def test_a_coordinate_strikes_all_ranks_that_have_it(target: str, struck: Sequence[int]) -> None:
    assert plan(target).faults[0].targets == tuple(Target(rank // 4, rank) for rank in struck)
    nodes = dict.fromkeys(Target(rank // 4) for rank in struck)
    assert plan(target, fault="node_loss").faults[0].targets == (*nodes,), "those that hold the ranks"


def test_the_seed_draws_any_coordinate_and_the_order_of_the_axes_outlives_the_plan() -> None:
    struck = plan("{pp: any}").faults[0].targets
    assert [target.rank for target in struck] in ([0, 1, 2, 3], [4, 5, 6, 7])
    first = plan("{tp: 0}", mesh="{tp: 2, pp: 4}")
    assert [*Plan.from_json(first.to_json()).workload.mesh] == ["tp", "pp"]
    assert "mesh" not in plan("{rank: 1}", mesh="{}").to_json()["workload"]
    words = Mesh({"pp": 2, "tp": 2}).in_words(3)
    assert words == "rank 3 is pp 1, tp 1; it shares the pipeline with rank 1, split tensors with rank 2"


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=3), st.data())
def test_a_domain_is_all_its_nodes_at_once_and_all_their_ranks(racks: list[set[int]], data: st.DataObject) -> None:
    labels = {f"rack{number}": sorted(nodes) for number, nodes in enumerate(racks)}
    label = data.draw(st.sampled_from([*labels, "any"]))
    nodes = in_domain(labels, label, "node_loss")
    assert nodes.workload.domain(nodes.faults[0].nodes())
    assert label == "any" or nodes.faults[0].targets == tuple(map(Target, labels[label]))
    ranks = in_domain(labels, label, "rank_kill")
    assert ranks.faults[0].nodes() == nodes.faults[0].nodes() and len(ranks.faults[0].targets) == 2 * len(
        nodes.faults[0].targets
    )
    assert Plan.from_json(ranks.to_json()) == ranks and ranks.without_faults("x").workload.node_labels == {}


def in_domain(labels: dict[str, list[int]], label: str, fault: str) -> Plan:
    return made(f"{{nodes: 4, ranks_per_node: 2, node_labels: {labels}, {TRAINER}}}", fault, f"{{domain: {label}}}")


@pytest.mark.parametrize(
    "target, mesh, told",
    [
        ("{tp: 2}", "{pp: 4, tp: 2}", "unknown tp 2; choose one of: 0 to 1"),
        ("{cp: 0}", "{pp: 4, tp: 2}", "no axis cp; choose one of: pp, tp"),
        ("{cp: 0}", "{}", "say the sizes in workload: mesh:"),
        ("{tp: 0}", "{tp: 3}", "the mesh has 3 ranks; nodes times ranks_per_node is 8"),
        ("{tp: 0, rank: 1}", "{tp: 8}", "coordinates in the workload's mesh"),
        ("{xp: 0}", "{tp: 8}", "xp"),
        ("{domain: rak}", "{tp: 8}", "no engine tells before the start"),
        ("{domain: rak}", "{tp: 8}, node_labels: {rack0: [0]}", "unknown domain 'rak'; did you mean rack0"),
    ],
)
def test_a_wrong_coordinate_or_domain_is_told_with_its_line(target: str, mesh: str, told: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        plan(target, mesh, "node_loss" if "domain" in target else "rank_kill")
    assert any(told in problem and "mesh.yaml:" in problem for problem in refused.value.problems)


# What ranks told of it


def told_mesh(folder: pathlib.Path, mesh: dict[Axis, int], **job: Any) -> timeline.Timeline:
    simulate(Job(nodes=2, ranks_per_node=2, mesh=(*mesh.items(),), **job)).write(folder)
    return timeline.load(folder)


def test_another_mesh_than_the_scenarios_is_noticed(tmp_path: pathlib.Path) -> None:
    def said(run: timeline.Timeline, mesh: dict[str, Any], rank: int = 1) -> str:
        told = {process.rank: process.coordinates for process in run.processes}
        return elsewhere(replace(run, plan={"workload": {"mesh": mesh}}), rank, told.get(rank, {}))

    run = told_mesh(tmp_path / "a", {"pp": 2, "tp": 2})
    assert said(run, {"pp": 2, "tp": 2}) == said(run, {}) == ""
    turned = "rank 1 is tp 1, pp 0, not tp 0, pp 1 as in the scenario's mesh"
    assert said(run, {"tp": 2, "pp": 2}) == turned and said(run, {"tp": 2, "pp": 2}, rank=9) == ""
    huge = {"pp": 2**62, "tp": 2**62, "x": -1, "y": "z"}  # it costs nothing
    assert "not pp 0, tp 1 as in" in said(run, huge)
    run = told_mesh(tmp_path / "b", {"fsdp": 2, "tp": 2})
    assert [said(run, {"dp": 2, "tp": 2}, rank) for rank in range(4)] == [""] * 4, (
        "any data parallelism may be called dp"
    )


def test_replicas_differ_along_dp_only(tmp_path: pathlib.Path) -> None:
    run = told_mesh(tmp_path, {"dp": 2, "tp": 2})
    by_rank = {process.rank: group for process, group in zip(run.processes, replicas(run), strict=True)}
    assert by_rank[0] == by_rank[2] != by_rank[1] == by_rank[3]
    weights = run.steps.rank + 1  # each rank computes with its own
    apart = ranks.weights_apart(replace(run, steps=replace(run.steps, weights=weights)))[1]
    said = {each.words.partition(" with ")[0].partition(" ranks ")[2] for each in apart}
    assert said == {"0, 2 each computed", "1, 3 each computed"}
    shards = replace(run, steps=replace(run.steps, weights=run.steps.rank % 2 + 1))
    assert ranks.weights_apart(shards)[1] == []


def test_a_layout_that_no_fault_free_run_had_is_named(tmp_path: pathlib.Path) -> None:
    split, whole = (told_mesh(tmp_path / str(tp), {"dp": 4 // tp, "tp": tp}) for tp in (2, 1))
    assert new_layout(whole, [split]) == "whole replicas" and new_layout(split, [whole, whole]) == "tp 2"
    assert new_layout(split, [whole, split]) == "" == new_layout(split, [])
    untold = replace(whole, processes=[replace(each, coordinates={}) for each in whole.processes])
    assert new_layout(split, [whole, untold]) == "", "nothing is known of that run's ranks"
    less = [replace(each, coordinates={"tp": each.coordinates["tp"]}) for each in split.processes]
    assert new_layout(replace(split, processes=less), [split]) == "", "how many replicas there are splits no model"


def test_the_group_of_the_victim_is_drawn_first(tmp_path: pathlib.Path) -> None:
    simulate(
        Job(nodes=8, ranks_per_node=8, steps=12, mesh=(("pp", 4), ("dp", 4), ("tp", 4))),
        [Outage(after=6, kind="node", victim=4)],
    ).write(tmp_path)
    run = timeline.load(tmp_path)
    cast = lanes.choose(run)
    assert [(lane.rank, lane.group) for lane in cast.lanes] == [(rank, "pp 2") for rank in range(32, 48)]
    assert cast.lanes[5].targeted and cast.lanes[5].place == "dp 1 tp 1"
    assert [(each.name, each.total, len(each.lanes)) for each in cast.folded] == [
        (f"pp {n}", 16, 16) for n in (0, 1, 3)
    ]
    assert [len(each.rows) for each in cast.folded] == [sum(run.steps.rank // 16 == n) for n in (0, 1, 3)]
    assert len(cast.folded[0].died) == sum(lanes.died(each) and each.rank < 16 for each in run.processes) > 0
    drawn = str(timeline_chart(cast))
    assert drawn.index(">dp 3 tp 3 · r47<") < drawn.index(">pp 0 · 16 ranks<") and "· r48<" not in drawn
