"""Reads the planned number of nodes and ranks of a job from the plan in its event log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class PlannedSize:
    """The planned number of nodes and ranks of a job. A field is `None` if the plan does not state the number."""

    nodes: int | None  # that the job is given, spares included
    max_nodes: int | None  # most nodes that it uses at a time; by default all
    min_nodes: int | None  # fewest nodes on which the job may go on; by default all
    ranks_per_node: int

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Self:
        workload = plan.get("workload") or {}
        nodes = int(workload.get("nodes") or 0) or None
        max_nodes = int(workload.get("max_nodes") or 0) or nodes
        min_nodes = int(workload.get("min_nodes") or 0) or max_nodes
        return cls(nodes, max_nodes, min_nodes, int(workload.get("ranks_per_node") or 1))

    @property
    def world_size(self) -> int | None:
        return self.max_nodes and self.max_nodes * self.ranks_per_node

    @property
    def spares(self) -> int:
        return (self.nodes or 0) - (self.max_nodes or 0)

    @property
    def assumed_world_size(self) -> int:
        return self.world_size or self.ranks_per_node

    @property
    def min_world_size(self) -> int | None:
        return self.min_nodes and self.min_nodes * self.ranks_per_node
