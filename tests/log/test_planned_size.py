"""The planned size of a job: nothing is made up where the plan does not say."""

from typing import Any

import pytest

from harness.log.planned_size import PlannedSize
from harness.trainers.contract import Workload


@pytest.mark.parametrize(
    "given",
    [
        {"nodes": 3, "ranks_per_node": 2, "min_nodes": 2},
        {"nodes": 3, "ranks_per_node": 2},
        {"nodes": 3},
        {"nodes": 3, "max_nodes": 2, "ranks_per_node": 2},
    ],
)
def test_a_plan_is_read_as_its_workload_was_meant(given: dict[str, int]) -> None:
    workload = Workload.model_validate(given)
    for stored in (given, workload.to_json()):
        size = PlannedSize.of({"workload": stored})
        assert (size.nodes, size.world_size) == (workload.nodes, workload.world_size)
        assert size.spares == given["nodes"] - workload.world_size // workload.ranks_per_node
        assert size.min_world_size == workload.min_nodes * workload.ranks_per_node


@pytest.mark.parametrize("plan", [{}, {"workload": None}, {"workload": {"ranks_per_node": 4}}])
def test_a_plan_that_does_not_say_leaves_the_size_open(plan: dict[str, Any]) -> None:
    size = PlannedSize.of(plan)
    assert (size.nodes, size.world_size, size.min_nodes, size.min_world_size) == (None, None, None, None)
