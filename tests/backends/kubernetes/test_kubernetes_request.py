"""What is asked of Kubernetes: compared whole, and read by models made from the published schemas. Needs no cluster."""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.backends.contract import Launch
from harness.backends.kubernetes import api, backend, manifests, mesh
from harness.backends.kubernetes.manifests import ClusterRun, Dialect
from harness.backends.kubernetes.settings import KINDS, VARIABLES, Settings, Toleration, read_settings
from harness.cli.main import make_app
from harness.errors import UsageError
from harness.node.node_paths import RUN_LABEL
from harness.node.types import Impairment

SNAPSHOT = pathlib.Path(__file__).with_name("kubernetes_request.yaml")
ROOT = pathlib.Path(__file__).resolve().parents[3]
SECRET = "hunter2"
app = make_app()
TRAINING = Launch(("{python}", "train.py"), 4, 8, {"PASSWORD": SECRET}, ("{python}", "store.py"), notice_s=120)
EVERYTHING = Settings(
    namespace="team-a",
    image="registry.example:5000/chaos-node:1@sha256:" + "0" * 64,
    pull="Never",
    gpu="nvidia.com/gpu",
    resources={"cpu": "8", "memory": "64Gi"},
    tolerations=(Toleration("spot", "yes", "NoSchedule"), Toleration("nvidia.com/gpu")),
    selector={"pool": "spot"},
    gang="training",
    checkpoints="pvc:checkpoints",
    secret="registry-token",
    service_account="trainer",
)
MODELS = {
    "Service": "IoK8sApiCoreV1Service",
    "Pod": "IoK8sApiCoreV1Pod",
    "Job": "IoK8sApiBatchV1Job",
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}


def rendered(kind: str, settings: Settings = EVERYTHING, **place: Any) -> list[dict[str, Any]]:
    chosen = Settings(**{**settings.__dict__, "kind": kind})
    return manifests.render(TRAINING, ClusterRun("spot-evict-1", chosen, **place))


def templates(value: Any) -> list[dict[str, Any]]:
    """Every pod specification in there."""
    if isinstance(value, list):
        return [found for each in value for found in templates(each)]
    if not isinstance(value, Mapping):
        return []
    own = [dict(value)] if "containers" in value else []
    return own + [found for each in value.values() for found in templates(each)]


def read_back(model: str, value: Any) -> Any:
    """What the model keeps of `value`: it drops what the schema does not have, and refuses wrong types."""
    import kubeflow_trainer_api.models as published  # slow, and every worker imports this file

    return getattr(published, model).from_dict(value).to_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [Settings(), EVERYTHING], ids=["plain", "everything"])
def test_all_pods_are_harmless_and_marked_and_published_schemas_have_every_field(kind: str, settings: Settings) -> None:
    for wanted in (objects := rendered(kind, settings)):
        assert wanted["metadata"]["labels"][RUN_LABEL] == "spot-evict-1" and "privileged" not in str(wanted)
        if model := MODELS.get(wanted["kind"]):
            assert read_back(model, wanted) == wanted
            odd = wanted | {"spec": wanted["spec"] | {"completionsMode": "Indexed"}}
            assert read_back(model, odd) != odd, "a field that no schema has is seen"
    assert templates(objects)
    for spec in templates(objects):
        assert read_back("IoK8sApiCoreV1PodSpec", spec) == spec
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["securityContext"] == rights
            assert settings is not EVERYTHING or container["imagePullPolicy"] == "Never"


def test_whole_requests_hold_no_value_of_the_environment() -> None:
    """After a change that is meant: `python tests/backends/kubernetes/test_kubernetes_request.py`, and read the difference."""
    assert snapshot() == SNAPSHOT.read_text()
    for kind in KINDS:
        assert SECRET not in str(rendered(kind))


def snapshot() -> str:
    """A job with every setting; of the other kinds what makes the pods, with none; and all for an old server. A part
    that stands there already is only named."""
    parts = {"as job, with every setting": rendered("job")}
    parts |= {f"as {kind}": rendered(kind, Settings())[3:] for kind in ("jobset", "pytorchjob", "trainjob")}
    old = ClusterRun("spot-evict-1", dialect=Dialect(False, False, "policy/v1beta1"))
    parts["on an old server"] = manifests.render(Launch(("true",), 1, 1), old)
    return yaml.safe_dump(_alike(parts, {}), sort_keys=False, width=120)


def _alike(value: Any, known: dict[str, Any]) -> Any:
    """With one object for all parts that are equal, of which YAML then writes the first one alone."""
    if isinstance(value, dict):
        value = {key: _alike(each, known) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        value = [_alike(each, known) for each in value]
    text = json.dumps(value)
    return known.setdefault(text, value) if len(text) > 80 else value


def test_the_control_host_asks_for_a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KUBE_SELECTOR", "pool=spot")
    monkeypatch.setenv("CHAOS_KUBE_CONTROL_SELECTOR", "pool=on-demand")
    place = manifests.ClusterRun("r1", read_settings())
    control = manifests.control_pod(place)["spec"]
    node = manifests.node_pod(Launch(("true",), 1, 1), place, 0, 1)
    (term,) = control["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selected = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert selected.items() <= node["metadata"]["labels"].items(), "it keeps away from the nodes of its own run"
    assert (control["nodeSelector"], node["spec"]["nodeSelector"]) == ({"pool": "on-demand"}, {"pool": "spot"})


@settings_(deadline=None)
@given(st.text(max_size=300), st.text(max_size=60))
def test_no_run_id_injects_a_name_and_two_that_differ_have_names_that_differ(run_id: str, other: str) -> None:
    label = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
    for wanted in manifests.render(Launch(("true",), 2, 1), ClusterRun(run_id)):
        assert re.fullmatch(label, wanted["metadata"]["name"])
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", wanted["metadata"]["labels"][RUN_LABEL])
    if run_id != other:
        assert ClusterRun(run_id).name != ClusterRun(other).name
        assert ClusterRun(run_id).selector != ClusterRun(other).selector


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AS", "deployment"),
        ("IMAGE", "node\nhostNetwork: true"),
        ("NAMESPACE", "Team A"),
        ("PULL", "never"),
        ("RESOURCES", "cpu=lots"),
        ("TOLERATIONS", "spot:Sometimes"),
        ("SELECTOR", "pool=a b"),
        ("GANG", "yunikorn"),
        ("CHECKPOINTS", "host:/data/../etc"),
        ("CHECKPOINTS", "nfs:server"),
        ("GPUS", "two words"),
        ("EVICT", "ask"),
        ("WAIT_S", "soon"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="allowed is") as raised:
        read_settings({f"CHAOS_KUBE_{name}": value})
    assert f"CHAOS_KUBE_{name}" in str(raised.value) and repr(value) in str(raised.value)


def test_settings_are_read() -> None:
    given = {"TOLERATIONS": "spot=yes:NoSchedule, gpu", "GPUS": "1", "GANG": "volcano", "SELECTOR": "pool=spot"}
    given |= {"CHECKPOINTS": "host:/data/shared"}
    found = read_settings({f"CHAOS_KUBE_{name}": value for name, value in given.items()})
    assert found.tolerations == (Toleration("spot", "yes", "NoSchedule"), Toleration("gpu"))
    assert (found.gpu, found.gang, found.host_path) == ("nvidia.com/gpu", "default", "/data/shared")
    assert found.selector == {"pool": "spot"}


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [name for name in VARIABLES if f"`{name}`" not in text] == []


def test_chaos_mesh_is_asked_for_one_pod_and_certain_peers() -> None:
    place, way = ClusterRun("r", EVERYTHING), mesh.Way("a", "ingress", ("b", "c"))
    wanted = mesh.impairment(place, "chaos-r-1", way, Impairment(delay_s=0.02, loss_percent=10, burst=4))
    assert wanted["metadata"] == {"name": "chaos-r-1", "labels": {RUN_LABEL: "r"}}
    assert wanted["spec"] == {
        "action": "netem",
        "mode": "all",
        "selector": {"pods": {"team-a": ["a"]}},
        "direction": "from",
        "delay": {"latency": "20000us", "jitter": "0us"},
        "loss": {"loss": "10", "correlation": "75"},
        "target": {"mode": "all", "selector": {"pods": {"team-a": ["b", "c"]}}},
    }
    assert mesh.bandwidth(place, "x", way, 100_000_000)["spec"]["bandwidth"]["rate"] == "12500000bps"
    with pytest.raises(UsageError, match="name the peers"):
        mesh.partition(place, "x", mesh.Way("a"))


def test_rights_are_those_that_are_used() -> None:
    """One rule too few and a run fails on a cluster that is well kept; what is created is in the rules."""
    documents = yaml.safe_load_all((ROOT / "harness" / "backends" / "kubernetes" / "rbac.yaml").read_text())
    role = next(each for each in documents if each["kind"] == "Role")
    granted = {
        (g, r, v) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
    }
    for kind in KINDS:
        for wanted in rendered(kind):
            group = wanted["apiVersion"].rpartition("/")[0]
            for verb in ("create", "delete", "list"):
                assert (group, api.PLURALS[wanted["kind"]], verb) in granted
    assert not any("*" in each for each in granted)
    assert not any(resource in ("secrets", "nodes", "pods/exec") for _, resource, _ in granted)


def plan(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", "spot-evict", "--backend", *words])


def test_plan_prints_what_kubectl_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KUBECONFIG", "/nowhere")  # nothing is asked of any server
    result = plan("kubernetes", "--as", "jobset", "-o", "yaml")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("apiVersion: v1\nkind: Service\nmetadata:\n  name: chaos-spot-evict\n")
    assert "*id" not in result.output, "every part is read where it stands"
    documents = list(yaml.safe_load_all(result.output))
    assert [each["kind"] for each in documents] == ["Service", "Pod", "PodDisruptionBudget", "JobSet"]
    assert plan("kubernetes", "--as", "jobset").output == result.output


def test_plan_prints_other_backends_and_refuses_a_kind_they_do_not_have() -> None:
    assert "--job-name=chaos-{run_id}" in plan("slurm", "--as", "yaml").output
    assert isinstance(plan("slurm", "--as", "job").exception, UsageError)
    with pytest.raises(UsageError, match="allowed are job"):
        backend.BACKEND.render_as(TRAINING, "deployment", "r")


def test_without_a_cluster_the_backend_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_KUBECONFIG", "/nowhere")
    capability = backend.KubernetesBackend().probe()
    assert not capability.available and "CHAOS_KUBECONFIG" in capability.summary


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
