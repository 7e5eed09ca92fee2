"""Decides whether a job's traffic uses RDMA: IP faults do not disturb RDMA traffic, and RDMA faults disturb nothing
else.

A fault that would disturb no traffic is refused before the job starts: on the local backend when the plan is made, on
other backends when the job has its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.backends.contract import Cluster
from harness.errors import BackendError, CannotRunError, UsageError
from harness.node.types import RdmaDevices
from harness.plan.run_plan import Plan, PlannedFault
from harness.trainers.contract import Workload

_BY_UCX = {"all", "ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "dc", "dc_x", "dc_mlx5", "ud", "ud_v", "ud_x"}


def uses_rdma(settings: Mapping[str, str], gpus: bool) -> bool:
    """Returns True if a job with these environment variables uses RDMA. gloo never uses RDMA. NCCL, which needs GPUs,
    uses RDMA unless a variable forbids it. UCX and NVSHMEM use RDMA if their variables name an RDMA transport."""
    ucx = {each.lstrip("^\\") for each in settings.get("UCX_TLS", "").lower().split(",")}
    shmem = settings.get("NVSHMEM_REMOTE_TRANSPORT", "none").lower() != "none"
    shmem |= settings.get("NVSHMEM_IB_ENABLE_IBGDA", "0").lower() in ("1", "true", "yes", "on")
    by_ucx = bool(ucx & _BY_UCX) and not settings.get("UCX_TLS", "").startswith("^")
    sockets = settings.get("NCCL_NET", "").lower() == "socket" or settings.get("NCCL_IB_DISABLE", "0").strip() == "1"
    return by_ucx or shmem or (gpus and not sockets)


def refused(fault: PlannedFault, workload: Workload, node: str, found: RdmaDevices) -> str | None:
    """Returns why a fault would disturb no traffic on a node with these RDMA devices, with a remedy, or `None`."""
    name, names = f"fault {fault.id} ({fault.kind})", ", ".join(found.devices)
    if fault.action.over_rdma() is True and not found.devices:
        none = "no RDMA device with an active port in /sys/class/infiniband"
        return f"{name} disturbs RDMA, and {node} has {none}: use nic_latency, nic_loss or partition for IP"
    settings = {variable: value for _, variable, value in workload.environment()}
    if fault.action.over_rdma() is not False or not found.devices or not uses_rdma(settings, found.gpus):
        return None
    env = "env: {NCCL_NET: Socket}"
    where = f"trainer: {{{env}}}" if "env" in type(workload.trainer).model_fields else env
    return (
        f"{name} disturbs IP, and {node} has RDMA ({names}), by which NCCL, UCX and NVSHMEM go around it. "
        f"Disturb RDMA itself by `fault: rdma`; or write `workload: {{{where}}}`, so that NCCL uses IP. "
        "A job over gloo uses IP, whatever is set: it may say so by the same line"
    )


def refuse_bypassed(plan: Plan, cluster: Cluster) -> None:
    """Finds the RDMA devices of all target nodes. Raises `CannotRunError` if a fault would disturb no traffic."""
    found = dict.fromkeys(_refusals(plan, cluster))
    if found:
        raise CannotRunError("\n".join(found))


def _refusals(plan: Plan, cluster: Cluster) -> Iterator[str]:
    known: dict[int, RdmaDevices | None] = {}
    for fault in plan.faults:
        asked = sorted(fault.nodes()) if fault.action.over_rdma() is not None else ()
        for index in asked if asked and asked[-1] < len(cluster.nodes) else ():
            node = cluster.nodes[index]
            if index not in known:
                known[index] = _asked(cluster, index)
            devices = known[index]
            if devices is not None and (reason := refused(fault, plan.workload, node.name, devices)):
                yield reason


def _asked(cluster: Cluster, index: int) -> RdmaDevices | None:
    try:
        return cluster.nodes[index].rdma()
    except (BackendError, UsageError):
        return None
