"""Compares the device-mesh coordinates that each rank logs with the device mesh in the scenario."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.mesh import Mesh, shown
from harness.timeline.timeline import Ints, Timeline

REPLICATED = "dp"
DATA = {"dp", "fsdp"}  # a scenario may call any data parallelism dp


def elsewhere(run: Timeline, rank: int, told: Mapping[str, tuple[int, int]]) -> str:
    """Returns how a rank's logged coordinates differ from the scenario's mesh, or "" if the coordinates agree with the
    mesh."""
    said = (run.plan.get("workload") or {}).get("mesh") or {}
    mesh = Mesh({axis: size for axis, size in said.items() if isinstance(size, int) and size > 0})
    if not told or not said or rank >= mesh.world_size:
        return ""
    told = {**told, **{axis: told[next(iter(DATA & told.keys()))] for axis in DATA if len(DATA & told.keys()) == 1}}
    wrong = {axis: at for axis, at in mesh.of(rank).items() if axis in told and told[axis] != (at, mesh.sizes[axis])}
    found = shown({axis: told[axis][0] for axis in wrong})
    return f"rank {rank} is {found}, not {shown(wrong)} as in the scenario's mesh" if wrong else ""


def replicas(run: Timeline) -> Ints:
    """Returns a group number for each process. The processes of a group are replicas, which have equal weights.
    Processes without logged coordinates form one group."""
    places = [tuple(sorted((a, *p) for a, p in each.coordinates.items() if a != REPLICATED)) for each in run.processes]
    return np.unique(np.array([str(place) for place in places] or [""]), return_inverse=True)[1].astype(np.int64)


def layouts(run: Timeline) -> frozenset[str]:
    """Returns the logged ways in which the model is split between ranks, such as `tp 2`, without axes of data
    parallelism."""
    told = [each.coordinates for each in run.processes if each.coordinates]
    parts = [[f"{axis} {n}" for axis, (_, n) in sorted(each.items()) if axis not in DATA and n > 1] for each in told]
    return frozenset(", ".join(each) or "whole replicas" for each in parts)


def new_layout(run: Timeline, others: Sequence[Timeline]) -> str:
    """Returns a split of the model, such as `tp 2`, that `run` logs and no run in `others` logs. Returns "" if a run in
    `others` logs no split."""
    known = [layouts(each) for each in others]
    return min(layouts(run) - frozenset().union(*known), default="") if known and all(known) else ""
