"""Finds out which operations on pods work in this cluster, by a dry run and by the user's rights."""

from __future__ import annotations

from harness.backends.contract import Verb
from harness.backends.kubernetes import manifests
from harness.backends.kubernetes.api import CHAOS_MESH, Api
from harness.backends.kubernetes.manifests import ClusterRun
from harness.backends.kubernetes.reclaim import way_of
from harness.backends.node_base import refused_libraries
from harness.errors import CannotRunError

LACKS = {
    Verb.HOST: "nodes are, or may be, other hosts than that of the harness",
    Verb.CPU_QUOTA: "limits of a running pod are left alone; `how: duty_cycle` needs none",
    Verb.MEMORY_KERNEL: "limits of a running pod are left alone; a watchdog kills instead",
    Verb.NET_LINK: "a pod's interface cannot be taken down without a privilege; partition it instead",
    Verb.NET_RESET: "Chaos Mesh cannot reset connections; partition the pod instead",
    Verb.FILES: "pods have disks of their own; what is changed on this one nobody there reads",
    Verb.STORAGE: "IOChaos of Chaos Mesh does not count what it does, and an effect must be measured",
}


def missing_verbs(api: Api, place: ClusterRun) -> dict[Verb, str]:
    """Returns the operations on nodes that do not work in this cluster, each with the reason. Raises `CannotRunError`
    if this user may not attach to pods."""
    for wanted in (manifests.delivered(place), *manifests.render(manifests.SMALLEST, place)):
        api.create(wanted, dry_run=True)
    if not api.may("create", "pods/attach") and not api.may("get", "pods/attach"):
        raise CannotRunError(
            "no right to attach to pods here; harness/backends/kubernetes/rbac.yaml has what is needed"
        )
    found, reason = LACKS | refused_libraries(), ""
    if not api.serves(CHAOS_MESH, "networkchaos"):
        reason = (
            "Chaos Mesh (its NetworkChaos) is not installed in this cluster; nothing else may touch a pod's network"
        )
    elif not api.may("create", "networkchaos", "chaos-mesh.org"):
        reason = "no right to create networkchaos.chaos-mesh.org; harness/backends/kubernetes/rbac.yaml has it"
    if reason:
        found |= dict.fromkeys((Verb.NET_RATE, Verb.NET_DELAY, Verb.NET_LOSS, Verb.NET_PARTITION), reason)
    if cannot := way_of(api, place).why_not():
        found[Verb.EVICT] = cannot
    return found
