"""The calls to labd about a node's share of the machine. `CALLS` lists them; each takes the lab first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.errors import NodeGone, UsageError
from harness.node import burner, cgroups
from harness.node.lab import Call, Lab
from harness.node.limits import Limits


def _limits(lab: Lab, node: str) -> Limits:
    limits = lab.living(node).limits
    if limits is None:
        raise NodeGone(f"node {node} is not there yet")
    return limits


async def limit_cpu(lab: Lab, node: str, cpus: float | None) -> None:
    if cpus is not None and not cpus > 0:
        raise UsageError(f"a quota of {cpus} CPUs; it must be above 0")
    group = _limits(lab, node).group("cpu")
    if cpus is None:
        group.restore()
    else:
        cgroups.limit_cpu(group, cpus)


async def crowd(lab: Lab, node: str, kind: str, load: float | None) -> None:
    if kind not in burner.KINDS:
        raise UsageError(f"unknown kind of load {kind!r}; choose one of: {', '.join(burner.KINDS)}")
    _limits(lab, node).crowd(kind, load)


async def cpu_use(lab: Lab, node: str) -> dict[str, Any]:
    limits = _limits(lab, node)
    use: dict[str, Any] = await lab.hosts[node].call("cpu_use")
    return use | {"throttled_ns": use["throttled_ns"] + limits.throttled_by_quota_ns()}


async def limit_memory(lab: Lab, node: str, limit_bytes: int | None, keeper: str) -> str:
    if limit_bytes is not None and limit_bytes <= 0:
        raise UsageError(f"a memory limit of {limit_bytes} bytes; it must be above 0")
    return _limits(lab, node).limit_memory(limit_bytes, keeper)


async def memory_use(lab: Lab, node: str) -> dict[str, Any]:
    return asdict(_limits(lab, node).memory_use())


async def fill_memory(lab: Lab, node: str, size_bytes: int, spare: bool) -> int:
    return await _limits(lab, node).fill(size_bytes, spare)


CALLS: dict[str, Call] = {
    "node.limit_cpu": limit_cpu,
    "node.crowd": crowd,
    "node.cpu_use": cpu_use,
    "node.limit_memory": limit_memory,
    "node.memory_use": memory_use,
    "node.fill_memory": fill_memory,
}
