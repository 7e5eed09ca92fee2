"""The kubernetes backend against the cluster that CHAOS_KUBECONFIG names; without one these tests are skipped.

Nothing here knows what kind of cluster it is. Images are not pulled unless CHAOS_KUBE_PULL says so. What every backend
promises is in the conformance suite, and what does not take a real cluster in `test_cluster`.
"""

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from backends.kubernetes.clusters import LOOP, codes, log, pod_of, running, started
from waiting import until

from harness.backends.contract import Launch, Verb
from harness.backends.kubernetes import backend, manifests
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.manifests import ClusterRun
from harness.backends.kubernetes.settings import read_settings
from harness.errors import CannotRunError

ROOT = pathlib.Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    not os.environ.get("CHAOS_KUBECONFIG"), reason="CHAOS_KUBECONFIG names no cluster to test on"
)


Open = Callable[..., backend.KubeCluster]


@pytest.fixture(scope="module", autouse=True)
def cluster_is_there() -> None:
    capability = backend.BACKEND.probe()
    assert capability.available, capability.summary  # who names a cluster wants to know


@pytest.fixture
def launch(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    clusters = []

    def open_cluster(*command: str, nodes: int = 1, **more: Any) -> backend.KubeCluster:
        run_id = f"{request.node.name[5:30].replace('_', '-').strip('-')}-{os.getpid()}"
        (tmp_path / "holds").mkdir()
        cluster = backend.BACKEND.open(Launch(command, nodes, 1, **more), tmp_path, run_id)
        assert isinstance(cluster, backend.KubeCluster)
        clusters.append(cluster)
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def test_an_eviction_with_a_short_grace_ends_in_a_kill(launch: Open) -> None:
    cluster = launch("sh", "-c", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    node = started(cluster)
    node.evict(1)
    until(lambda: not node.alive, "the node is taken")
    assert codes(cluster, 1) == {("node0", 1): -9}


@pytest.mark.parametrize("how", ["drain", "taint"])
def test_a_machine_that_is_taken_is_given_back(launch: Open, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("CHAOS_KUBE_EVICT", how)
    if Verb.EVICT not in backend.KubernetesBackend().probe().verbs:
        pytest.skip("no right to change machines in this cluster")
    cluster = launch(*LOOP, control=("sleep", "600"))
    node = started(cluster)
    path = f"/api/v1/nodes/{pod_of(node).machine}"
    before = cluster._api.get(path)["spec"]
    node.evict(20)
    until(lambda: not node.alive, "the node is taken")
    taken = cluster._api.get(path)["spec"]
    assert taken.get("unschedulable") if how == "drain" else taken["taints"] != before.get("taints", [])
    fresh = cluster.replace(node)
    after = cluster._api.get(path)
    assert after["spec"].get("taints", []) == before.get("taints", [])
    assert after["spec"].get("unschedulable") == before.get("unschedulable")
    assert fresh.alive and cluster.control_running


def test_no_eviction_takes_the_control_host(launch: Open) -> None:
    cluster = launch("sleep", "600", control=("sleep", "600"))
    cluster.start()
    path = cluster._api.path(cluster._place.dialect.policy, "poddisruptionbudgets", cluster._place.control)
    until(lambda: cluster._api.get(path).get("status", {}).get("observedGeneration"), "the budget is known")
    with pytest.raises(Refused) as refused:
        cluster._api.evict(cluster._place.control, 1)
    assert refused.value.status == 429
    assert cluster.control_running


def test_a_checkpoint_outlives_its_node(launch: Open) -> None:
    save = "cd {run_dir}/checkpoints && mkdir .tmp && echo $CHAOS_INCARNATION >.tmp/data && mv .tmp step-$CHAOS_INCARNATION"
    copied = "until [ -e {run_dir}/checkpoints/step-1 ]; do sleep 0.1; done"
    script = (
        f"ls {{run_dir}}/checkpoints; if [ {{index}} = 0 ]; then {save}; else {copied}; fi; echo started; sleep 600"
    )
    cluster = launch("sh", "-c", script, nodes=2)
    node, other = started(cluster), cluster.nodes[1]
    running(cluster, other)  # the copy of the checkpoint is there
    node.kill()
    fresh = cluster.replace(node)
    running(cluster, fresh)
    assert "step-1" in log(cluster, fresh)


def test_what_cannot_run_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("CHAOS_KUBE_IMAGE", "chaos-there-is-no-such-image")
    monkeypatch.setenv("CHAOS_KUBE_PULL", "Never")
    with pytest.raises(CannotRunError, match="ErrImageNeverPull"):
        backend.BACKEND.open(Launch(("true",), 1, 1), tmp_path, f"no-image-{os.getpid()}")


def test_the_server_takes_every_request_that_it_knows() -> None:
    """As a dry run, with every setting that changes what a server must understand."""
    settings = read_settings({**os.environ, "CHAOS_KUBE_TOLERATIONS": "spot=yes:NoSchedule", "CHAOS_KUBE_GPUS": "1"})
    api = Api(settings)
    for wanted in manifests.render(Launch(("true",), 2, 4, notice_s=120), ClusterRun("dry", settings, api.dialect)):
        api.create(wanted, dry_run=True)
    api.close()


def test_the_plain_manifest_of_a_gate_becomes_a_pod_with_its_rights() -> None:
    """In a namespace of its own, as `kubectl apply` of both files would. Its image is not there, so nothing runs."""
    from kubernetes import client, config, utils

    api = config.new_client_from_config(os.environ["CHAOS_KUBECONFIG"])
    core, namespace = client.CoreV1Api(api), f"chaos-apply-{os.getpid()}"
    texts = [ROOT / "harness/backends/kubernetes/rbac.yaml", ROOT / "examples/ci/kubernetes-job.yaml"]
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))
    try:
        for text in texts:
            for wanted in yaml.safe_load_all(text.read_text().replace("NAMESPACE", namespace)):
                utils.create_from_dict(api, wanted, namespace=namespace)
        until(lambda: core.list_namespaced_pod(namespace, label_selector="job-name=chaos-gate").items, "a pod is made")
        spec = api.sanitize_for_serialization(core.list_namespaced_pod(namespace))["items"][0]["spec"]
        assert spec["serviceAccountName"] == "chaos-harness" and spec["containers"][0]["args"][0] == "gate"
    finally:
        core.delete_namespace(namespace)
