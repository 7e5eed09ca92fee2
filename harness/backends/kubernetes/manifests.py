"""Makes the Kubernetes objects of a workload, as plain data. No function of this module has side effects.

Every object of the harness has the label `chaos.run_id`, and only objects with this label are removed. A pod starts the
harness's init process, which waits until the harness connects. The harness sends the workload's command and environment
to the init process, so that no Kubernetes object contains them.
"""

import base64
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends import delivery
from harness.backends.contract import Launch
from harness.backends.kubernetes.settings import Settings
from harness.backends.run_folder import CONTROL
from harness.errors import UsageError
from harness.node import boot
from harness.node.node_paths import IMAGE_UID, INDEX_LABEL, NODE_LABEL, POD_RUN_DIR, RUN_LABEL, SCRATCH, SHARED

Object = dict[str, Any]

SHM = "1Gi"  # data loaders and NCCL pass tensors through /dev/shm
DELIVERED = "/chaos/delivered"  # where a pod finds what the harness delivered to it
GRACE_S_MIN = 30
MARGIN_S = 5  # what leaving takes besides the notice
NAME_CHARS_MAX = 46  # a JobSet adds its own names, an index and five random letters; 63 are allowed
PREEMPTOR_S_MAX = 3600
RESTARTS_MAX = 100
KEPT_S = 600
TAINT = "chaos-harness/reclaimed"  # of a machine that we take; the control host stays there

PREEMPTOR = "preemptor"
SMALLEST = Launch(("true",), 1, 1)
_NODES = "node"  # the replicated job in a JobSet; Kubeflow's trainer calls its own so, too


@dataclass(frozen=True)
class Dialect:
    """Says which newer Kubernetes APIs an API server has. By default, the server has all newer APIs."""

    indexed_jobs: bool = True
    failure_policy: bool = True  # of jobs: an eviction is not counted as a failure
    policy: str = "policy/v1"  # evictions and disruption budgets


@dataclass(frozen=True)
class ClusterRun:
    run_id: str = "run"
    settings: Settings = field(default_factory=Settings)
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def name(self) -> str:
        """Returns the prefix of the names of all objects of the run: the run id, or the id's digest if the id is no
        valid name."""
        plain = re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", self.run_id)
        if plain and len(self.run_id) <= NAME_CHARS_MAX - len("chaos-"):
            return f"chaos-{self.run_id}"
        return "chaos-" + hashlib.sha256(self.run_id.encode()).hexdigest()[:16]

    @property
    def control(self) -> str:
        return f"{self.name}-{CONTROL}"

    def preemptor(self, index: int) -> str:
        return f"{self.name}-{PREEMPTOR}-{index}"

    @property
    def labels(self) -> dict[str, str]:
        return {RUN_LABEL: label_value(self.run_id)}

    @property
    def selector(self) -> str:
        return f"{RUN_LABEL}={label_value(self.run_id)}"

    @property
    def kind(self) -> str:
        """Returns the kind of Kubernetes object that creates the pods of the run, such as `job`. Returns `pods` instead
        of `job` if the server has no Indexed Jobs, because other Jobs give their pods no index."""
        if self.settings.kind == "job" and not self.dialect.indexed_jobs:
            return "pods"
        return self.settings.kind


def label_value(run_id: str) -> str:
    """Returns the run id as the value of a label, or the id's digest if the id is no valid label value."""
    if re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", run_id):
        return run_id
    return hashlib.sha256(run_id.encode()).hexdigest()[:16]


def delivered(place: ClusterRun) -> Object:
    """Returns the ConfigMap that holds the archive of the harness's programs for the pods. The ConfigMap is created
    before the pods, because no pod starts without it."""
    content = base64.b64encode(delivery.archive()).decode()
    found = object_of("v1", "ConfigMap", place.name, place, {})
    del found["spec"]
    return found | {"immutable": True, "binaryData": {delivery.NAME: content}}


def render(workload: Launch, place: ClusterRun) -> list[Object]:
    first = [service(place), control_pod(place), budget(place)]
    if place.settings.gang:
        gang = {"minMember": workload.nodes, "queue": place.settings.gang}
        first.append(object_of("scheduling.volcano.sh/v1beta1", "PodGroup", place.name, place, gang))
    return [*first, *RENDERERS[place.kind](workload, place)]


# What every kind has


def service(place: ClusterRun) -> Object:
    """Returns a headless service, which gives each pod a name in the cluster's DNS, even before the pod is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": place.labels}
    return object_of("v1", "Service", place.name, place, spec)


def control_pod(place: ClusterRun) -> Object:
    """Returns the control host's pod, which holds the rendezvous store and, if no volume is configured, the
    checkpoints."""
    spec = _pod_spec(place, CONTROL, grace_s=1)
    spec |= {"hostname": CONTROL, "subdomain": place.name}
    spec["tolerations"] = [*spec.get("tolerations", []), _toleration(TAINT, "", "")]
    # On another machine than the nodes, where there is one. The scheduler honours it for later nodes, too.
    nodes = {"matchLabels": place.labels | {NODE_LABEL: _NODES}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": nodes}
    preferred = {"weight": 100, "podAffinityTerm": term}
    spec["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}
    if place.settings.control_selector:
        spec["nodeSelector"] = dict(place.settings.control_selector)
    return object_of("v1", "Pod", place.control, place, spec, {NODE_LABEL: CONTROL})


def budget(place: ClusterRun) -> Object:
    """Returns a disruption budget that protects the control host from drains and evictions."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": place.labels | {NODE_LABEL: CONTROL}}}
    return object_of(place.dialect.policy, "PodDisruptionBudget", place.control, place, spec)


def node_pod(workload: Launch, place: ClusterRun, index: int, incarnation: int) -> Object:
    """Returns the pod of a node that belongs to no Indexed Job. If the pod is lost, the harness creates its
    replacement."""
    template = _template(workload, place)
    spec = template["spec"] | {"hostname": f"{_NODES}{index}", "subdomain": place.name}
    spec["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    labels = template["metadata"]["labels"] | {INDEX_LABEL: str(index)}
    pod = object_of("v1", "Pod", f"{place.name}-{index}-{incarnation}", place, spec, labels)
    pod["metadata"] |= {key: value for key, value in template["metadata"].items() if key == "annotations"}
    return pod


def preemptor(
    place: ClusterRun, index: int, machine: str, victim: dict[str, str], tolerations: Sequence[Object]
) -> Object:
    """Returns an idle pod that can run only on the given machine, and never on the same machine as a pod with the
    labels in `victim`.

    The idle pod requests no CPU, memory or GPUs, so that the scheduler evicts no other pod than the victim. The idle
    pod ends after an hour if nobody removes it.
    """
    spec = _pod_spec(place, PREEMPTOR, grace_s=0)
    named = {"key": "metadata.name", "operator": "In", "values": [machine]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": victim}}
    spec |= {
        "priorityClassName": place.settings.evict_by,
        "activeDeadlineSeconds": PREEMPTOR_S_MAX,
        "tolerations": list(tolerations),
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [named]}]}
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        },
        "volumes": [],
    }
    spec["containers"][0] |= {
        "command": ["python3", "-c", f"import time; time.sleep({PREEMPTOR_S_MAX})"],
        "stdin": False,
        "env": [],
        "workingDir": "/",
        "volumeMounts": [],
    }
    return object_of("v1", "Pod", place.preemptor(index), place, spec, {NODE_LABEL: PREEMPTOR})


# The kinds


def _jobset(workload: Launch, place: ClusterRun) -> list[Object]:
    network = {"enableDNSHostnames": True, "subdomain": place.name, "publishNotReadyAddresses": True}
    spec = {
        "network": network,
        "failurePolicy": {"maxRestarts": RESTARTS_MAX},
        "replicatedJobs": [_replicated(workload, place, {})],
    }
    return [object_of("jobset.x-k8s.io/v1alpha2", "JobSet", place.name, place, spec)]


def _pytorchjob(workload: Launch, place: ClusterRun) -> list[Object]:
    """Returns a PyTorchJob that runs the workload's nodes as pods. The operator of PyTorchJobs demands a master, which
    is node 0 here, and a container with the name `pytorch`."""
    template = _template(workload, place)
    template["spec"]["containers"][0]["name"] = "pytorch"
    del template["spec"]["restartPolicy"]  # the operator's to set
    roles = {"Master": 1} | ({"Worker": workload.nodes - 1} if workload.nodes > 1 else {})
    # ExitCode: a pod that was killed is made anew, one that failed by itself is not.
    replicas = {
        role: {"replicas": count, "restartPolicy": "ExitCode", "template": template} for role, count in roles.items()
    }
    policy = {"cleanPodPolicy": "None", "backoffLimit": RESTARTS_MAX}
    spec = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
    return [object_of("kubeflow.org/v1", "PyTorchJob", place.name, place, spec)]


def _trainjob(workload: Launch, place: ClusterRun) -> list[Object]:
    """Returns a TrainJob with its own TrainingRuntime, because no predefined runtime keeps standard input open."""
    version = "trainer.kubeflow.org/v1alpha1"
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    runtime = {
        "mlPolicy": {"numNodes": workload.nodes},
        "template": {"spec": {"replicatedJobs": [_replicated(workload, place, step)]}},
    }
    train = {
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": place.name},
        "trainer": {"numNodes": workload.nodes, "image": place.settings.image},
    }
    return [
        object_of(version, "TrainingRuntime", place.name, place, runtime),
        object_of(version, "TrainJob", place.name, place, train),
    ]


RENDERERS: dict[str, Callable[[Launch, ClusterRun], list[Object]]] = {
    "pods": lambda workload, place: [node_pod(workload, place, index, 1) for index in range(workload.nodes)],
    "job": lambda workload, place: [object_of("batch/v1", "Job", place.name, place, _job_spec(workload, place))],
    **{"jobset": _jobset, "pytorchjob": _pytorchjob, "trainjob": _trainjob},
}
# Where the pods' owner is found again, to be removed: group, version, plural; the first that creates the others.
OWNERS = {
    "pods": (),
    "job": (("batch", "v1", "jobs"),),
    "jobset": (("jobset.x-k8s.io", "v1alpha2", "jobsets"),),
    "pytorchjob": (("kubeflow.org", "v1", "pytorchjobs"),),
    "trainjob": (
        ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
        ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
    ),
}


def _replicated(workload: Launch, place: ClusterRun, labels: dict[str, str]) -> Object:
    job = {"metadata": {"labels": place.labels | labels}, "spec": _job_spec(workload, place)}
    return {"name": _NODES, "replicas": 1, "template": job}


def _job_spec(workload: Launch, place: ClusterRun) -> Object:
    spec: Object = {
        "completions": workload.nodes,
        "parallelism": workload.nodes,
        "completionMode": "Indexed",
        "backoffLimit": RESTARTS_MAX,
        "ttlSecondsAfterFinished": KEPT_S,  # pods that nobody speaks to any more end with 0, and their job with them
        "template": _template(workload, place),
    }
    if place.dialect.failure_policy:
        disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec["podFailurePolicy"] = {"rules": [disrupted]}
    return spec


def _template(workload: Launch, place: ClusterRun) -> Object:
    settings = place.settings
    labels = place.labels | {NODE_LABEL: _NODES}
    spec = _pod_spec(place, _NODES, _grace_s(workload, settings))
    spec["subdomain"] = place.name
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
    ]
    container = spec["containers"][0]
    limits = dict(settings.resources)
    if settings.gpu:
        limits[settings.gpu] = str(workload.ranks_per_node)
    if limits:
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    if settings.secret:
        container["envFrom"] = [{"secretRef": {"name": settings.secret}}]
    metadata: Object = {"labels": labels}
    if settings.gang:
        spec["schedulerName"] = "volcano"
        metadata["annotations"] = {"scheduling.k8s.io/group-name": place.name}
    return {"metadata": metadata, "spec": spec}


def _grace_s(workload: Launch, settings: Settings) -> int:
    notice_s = math.ceil(workload.notice_s)
    if settings.evict_by_own_grace and notice_s > 0:
        return notice_s
    return max(GRACE_S_MIN, notice_s + MARGIN_S)


def _pod_spec(place: ClusterRun, role: str, grace_s: int) -> Object:
    settings = place.settings
    container: Object = {
        "name": role,
        "image": settings.image,
        "imagePullPolicy": settings.pull,
        "command": boot.command("python3", f"{DELIVERED}/{delivery.NAME}", "harness.node.pod_init", [role]),
        "workingDir": SCRATCH,
        "stdin": True,
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "delivered", "mountPath": DELIVERED, "readOnly": True},
            {"name": "run", "mountPath": POD_RUN_DIR},
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": IMAGE_UID,
            "runAsGroup": IMAGE_UID,
            "fsGroup": IMAGE_UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "delivered", "configMap": {"name": place.name}},
            {"name": "run", "emptyDir": {}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM}},
        ],
    }
    if settings.checkpoints:
        container["volumeMounts"].append({"name": "checkpoints", "mountPath": SHARED})
        volume: Object = {"persistentVolumeClaim": {"claimName": settings.claim}}
        if not settings.claim:
            volume = {"hostPath": {"path": settings.host_path, "type": "DirectoryOrCreate"}}
        spec["volumes"].append({"name": "checkpoints"} | volume)
    if settings.tolerations:
        spec["tolerations"] = [_toleration(each.key, each.value, each.effect) for each in settings.tolerations]
    if settings.selector:
        spec["nodeSelector"] = dict(settings.selector)
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    return spec


def _toleration(key: str, value: str, effect: str) -> Object:
    found = {"key": key} | ({"operator": "Equal", "value": value} if value else {"operator": "Exists"})
    return found | ({"effect": effect} if effect else {})


def object_of(
    version: str, kind: str, name: str, place: ClusterRun, spec: Object, labels: dict[str, str] | None = None
) -> Object:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise UsageError(f"{kind} name {name!r}: at most 63 lower-case letters, digits and '-' are allowed")
    metadata = {"name": name, "labels": place.labels | (labels or {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
