"""Defines the ways to make Kubernetes take a node away, one for each value of `CHAOS_KUBE_EVICT`."""

import os
import shlex
import shutil

from harness.backends.kubernetes import manifests
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.manifests import TAINT, ClusterRun, Object, label_value
from harness.backends.kubernetes.pod import Pod
from harness.backends.site_commands import answer_of
from harness.errors import BackendError, CannotRunError

COMMAND_S_MAX = 120.0  # a cloud's command may wait for the cloud
MACHINES_RIGHTS = "harness/backends/kubernetes/rbac-machines.yaml"  # no run needs them that evicts pods alone
MARK = "chaos-harness/run"  # label of a machine: whose cordon it is


class Way:
    """Takes a node's pod away by the Eviction API of Kubernetes. This class is the base of all other ways to take a pod
    away. Raises `BackendError` if Kubernetes refuses the eviction."""

    takes_machine = False  # out of service: the control pod must not be there
    takes_all_there = False  # takes every other pod of that machine, too

    def __init__(self, api: Api, place: ClusterRun):
        self._api, self._place = api, place

    def why_not(self) -> str:
        right = "harness/backends/kubernetes/rbac.yaml has it"
        return "" if self._api.may("create", "pods/eviction") else f"no right to create pods/eviction; {right}"

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        self._api.evict(pod.name, grace_s)

    def give_back(self, index: int) -> None:
        """Makes the machine available again from which a node's pod was taken, so that a new pod can start. Repeated
        calls are safe."""

    def heal(self) -> int:
        """Undoes all changes by which this run took pods away, even those of another process of the harness. Returns
        the number of undone changes. Repeated calls are safe."""
        return 0


class Delete(Way):
    """Takes a node's pod away by deleting the pod. The pod's grace period serves as the eviction notice."""

    def why_not(self) -> str:
        return ""  # no run could end without this right

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        self._api.delete("v1", "pods", pod.name, grace_s)


class _OfMachines(Way):
    takes_machine = True

    def why_not(self) -> str:
        settings = self._place.settings
        if not self._api.may("patch", "nodes", namespaced=False):
            return f"CHAOS_KUBE_EVICT={settings.evict} needs the rights of {MACHINES_RIGHTS}"
        wanted = ",".join(f"{key}={value}" for key, value in settings.selector.items())
        if not settings.control_selector and len(self._api.machines(wanted)) < 2:
            return f"CHAOS_KUBE_EVICT={settings.evict} needs a second machine, where the control pod stays"
        return ""

    def give_back(self, index: int) -> None:
        self.heal()

    def heal(self) -> int:
        marked = self._api.machines(f"{MARK}={self._value}")
        for machine in marked:
            taints = machine["spec"].get("taints", [])
            others = [each for each in taints if each["key"] != TAINT]
            spec: Object = {"taints": others} if others != taints else {"unschedulable": None}
            self._patch(machine["metadata"]["name"], None, spec)
        return len(marked)

    @property
    def _value(self) -> str:
        return label_value(self._place.run_id)

    def _patch(self, machine: str, mark: str | None, spec: Object) -> None:
        self._api.patch_machine(machine, {"metadata": {"labels": {MARK: mark}}, "spec": spec})


class Drain(_OfMachines):
    """Takes a node away by a drain: a cordon of its machine, and an eviction of its pod. A machine that somebody else
    has cordoned stays cordoned."""

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        if not self._api.get(f"/api/v1/nodes/{pod.machine}")["spec"].get("unschedulable"):
            self._patch(pod.machine, self._value, {"unschedulable": True})
        self._api.evict(pod.name, grace_s)


class Taint(_OfMachines):
    """Takes a node away by a NoExecute taint, which evicts every pod on the machine that does not tolerate the taint,
    including pods of other users. Each pod's grace period serves as its eviction notice."""

    takes_all_there = True

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        found = self._api.get(f"/api/v1/nodes/{pod.machine}")
        taints = [each for each in found["spec"].get("taints", []) if each["key"] != TAINT]
        taints.append({"key": TAINT, "value": self._value, "effect": "NoExecute"})
        self._patch(pod.machine, self._value, {"taints": taints})


class Priority(Way):
    """Takes a node away by preemption: the scheduler evicts the node's pod in favour of a pod of higher priority, which
    then keeps the machine.

    The pod of higher priority requests no resources, but a required anti-affinity keeps the pod off machines with the
    node's pod. The scheduler evicts as few pods as possible, and so evicts only the node's pod. The grace period of the
    node's pod serves as its eviction notice.
    """

    def why_not(self) -> str:
        try:
            wanted = manifests.preemptor(self._place, 0, "any", {"app": "any"}, ())
            higher = self._api.create(wanted, dry_run=True)["spec"]
            node = manifests.node_pod(manifests.SMALLEST, self._place, 0, 0)
            ours = self._api.create(node, dry_run=True)["spec"].get("priority", 0)
        except Refused as error:
            return f"CHAOS_KUBE_EVICT={self._place.settings.evict}: {error}"
        name = f"priority class {self._place.settings.evict_by!r}"
        if higher.get("priority", 0) <= ours:
            return f"{name} has priority {higher.get('priority', 0)}, which is not above that of our pods, {ours}"
        if higher.get("preemptionPolicy") == "Never":
            return f"{name} never preempts (its preemptionPolicy is Never)"
        return ""

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        found = self._api.pod(pod.name)
        if found is None:
            return  # it is ending; its line tells
        labels = found["metadata"]["labels"]
        self._refuse_alike(found, labels)
        tolerations = tuple(found["spec"].get("tolerations", ()))
        self._api.create(manifests.preemptor(self._place, index, pod.machine, labels, tolerations))

    def _refuse_alike(self, found: Object, labels: dict[str, str]) -> None:
        """Raises `CannotRunError` if other pods on this machine have all labels of the node's pod, because these pods
        would be evicted, too."""
        alike = [
            each["metadata"]["name"]
            for each in self._api.pods(self._place)
            if each["spec"].get("nodeName") == found["spec"]["nodeName"]
            and each["metadata"]["uid"] != found["metadata"]["uid"]
            and labels.items() <= each["metadata"]["labels"].items()
        ]
        if alike:
            text = f"no label tells {found['metadata']['name']} from {', '.join(alike)} on the same machine"
            raise CannotRunError(f"CHAOS_KUBE_EVICT={self._place.settings.evict}: {text}, so all of them would go")

    def give_back(self, index: int) -> None:
        self._api.delete("v1", "pods", self._place.preemptor(index), grace_s=0)


class Command(Way):
    """Takes a node away by a command that the site provides. The command is called as `reclaim MACHINE SECONDS RUN`,
    `restore MACHINE RUN` or `heal RUN`. The variable `CHAOS_PROVIDER_ID` gives the command the cloud's name of the
    machine, if this user may read nodes."""

    takes_machine = takes_all_there = True

    def __init__(self, api: Api, place: ClusterRun):
        super().__init__(api, place)
        self._machines: dict[int, str] = {}

    def why_not(self) -> str:
        program = shlex.split(self._place.settings.evict_by)[0]
        return "" if shutil.which(program) else f"CHAOS_KUBE_EVICT={self._place.settings.evict}: no program {program!r}"

    def take(self, pod: Pod, index: int, grace_s: int) -> None:
        self._machines[index] = pod.machine
        try:
            provider_id = str(self._api.get(f"/api/v1/nodes/{pod.machine}")["spec"].get("providerID", ""))
        except BackendError:
            provider_id = ""
        self._run(["reclaim", pod.machine, str(grace_s), self._place.run_id], provider_id)

    def give_back(self, index: int) -> None:
        if machine := self._machines.pop(index, ""):
            self._run(["restore", machine, self._place.run_id])

    def heal(self) -> int:
        self._run(["heal", self._place.run_id])
        return 1

    def _run(self, words: list[str], provider_id: str = "") -> None:
        command = [*shlex.split(self._place.settings.evict_by), *words]
        answer_of(command, {**os.environ, "CHAOS_PROVIDER_ID": provider_id}, COMMAND_S_MAX)


WAYS: dict[str, type[Way]] = {
    "evict": Way,
    "delete": Delete,
    "drain": Drain,
    "taint": Taint,
    "priority": Priority,
    "command": Command,
}


def way_of(api: Api, place: ClusterRun) -> Way:
    return WAYS[place.settings.evict.partition(":")[0]](api, place)
