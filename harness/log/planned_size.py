"""The planned size of a job, from the plan in its log. The actual size is told by its ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class PlannedSize:
    """The planned size of the job in nodes and ranks. `None`: the log holds no plan, or its plan does not say."""

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
        """Ranks of the whole job."""
        return self.max_nodes and self.max_nodes * self.ranks_per_node

    @property
    def spares(self) -> int:
        """Returns the number of nodes that the job has beyond those that it uses."""
        return (self.nodes or 0) - (self.max_nodes or 0)

    @property
    def assumed_world_size(self) -> int:
        """Returns the planned world size, or that of one node if it is not known."""
        return self.world_size or self.ranks_per_node

    @property
    def min_world_size(self) -> int | None:
        """Returns the fewest ranks with which the job may go on."""
        return self.min_nodes and self.min_nodes * self.ranks_per_node
