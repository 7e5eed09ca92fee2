"""The cluster's machines: taken out of service under our own mark, and given back by it.

Needs the rights of `rbac-machines.yaml`, which no run needs that evicts pods by the Eviction API alone.
"""

from __future__ import annotations

from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.manifests import TAINT, Object, label_value

MARK = "chaos-harness/run"  # label: whose cordon it is


def cordon(api: Api, machine: str, run_id: str) -> None:
    """No pod is scheduled there from now on. A machine that somebody else has cordoned stays theirs."""
    found = api.get(f"/api/v1/nodes/{machine}")
    if not found["spec"].get("unschedulable"):
        labels = {MARK: label_value(run_id)}
        api.patch_machine(machine, {"metadata": {"labels": labels}, "spec": {"unschedulable": True}})


def taint(api: Api, machine: str, run_id: str) -> None:
    """NoExecute: every pod on this machine that does not tolerate it is evicted, other people's as well."""
    found = api.get(f"/api/v1/nodes/{machine}")
    taints = [each for each in found["spec"].get("taints", []) if each["key"] != TAINT]
    taints.append({"key": TAINT, "value": label_value(run_id), "effect": "NoExecute"})
    api.patch_machine(machine, {"metadata": {"labels": {MARK: label_value(run_id)}}, "spec": {"taints": taints}})


def give_back(api: Api, run_id: str) -> int:
    """Undoes both wherever they carry this run's mark; returns on how many machines. Idempotent."""
    marked = api.machines(f"{MARK}={label_value(run_id)}")
    for machine in marked:
        taints = machine["spec"].get("taints", [])
        others = [each for each in taints if each["key"] != TAINT]
        spec: Object = {"taints": others} if others != taints else {"unschedulable": None}
        api.patch_machine(machine["metadata"]["name"], {"metadata": {"labels": {MARK: None}}, "spec": spec})
    return len(marked)
