"""The kubernetes backend against the cluster that CHAOS_KUBECONFIG names; without one these tests are skipped.

Nothing here knows what kind of cluster it is. Images are not pulled unless CHAOS_KUBE_PULL says so.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import until

from harness.backends.contract import Launch, Node, Verb
from harness.backends.kubernetes import backend, manifests
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.manifests import ClusterRun
from harness.backends.kubernetes.settings import read_settings
from harness.errors import NodeGone

LOOP = ("sh", "-c", "trap 'echo heard; exit 9' TERM; echo started; while :; do sleep 0.1; done")

pytestmark = pytest.mark.skipif(
    not os.environ.get("CHAOS_KUBECONFIG"), reason="CHAOS_KUBECONFIG names no cluster to test on"
)


@pytest.fixture(scope="module", autouse=True)
def cluster_is_there() -> None:
    capability = backend.BACKEND.probe()
    assert capability.available, capability.summary  # who names a cluster wants to know


@pytest.fixture
def launch(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., backend.KubeCluster]]:
    clusters = []

    def open_cluster(*command: str, nodes: int = 1, name: str = "", **more: Any) -> backend.KubeCluster:
        run_id = f"{request.node.name[5:30].replace('_', '-').strip('-')}-{os.getpid()}{name}"
        run_dir = tmp_path / (name or "run")
        (run_dir / "holds").mkdir(parents=True)
        cluster = backend.BACKEND.open(Launch(command, nodes, 1, **more), run_dir, run_id)
        assert isinstance(cluster, backend.KubeCluster)
        clusters.append(cluster)
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def codes(cluster: backend.KubeCluster, count: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}

    def look() -> bool:
        found.update({(each.node, each.incarnation): each.code for each in cluster.exits()})
        return len(found) >= count

    until(look, f"{count} exits")
    return found


def log(cluster: backend.KubeCluster, node: Node) -> str:
    path = cluster.run_dir / "logs" / f"{node.name}.{node.incarnation}.log"
    return path.read_text() if path.exists() else ""


def started(cluster: backend.KubeCluster) -> Node:
    cluster.start()
    until(lambda: "started" in log(cluster, cluster.nodes[0]), "the command runs")
    return cluster.nodes[0]


def test_nodes_know_their_place_and_their_exit_codes_come_back(launch: Callable[..., backend.KubeCluster]) -> None:
    script = 'echo "{index} {incarnation} {address} {control} $CHAOS_NODE $SECRET"; exit 1{index}'
    cluster = launch("sh", "-c", script, nodes=2, control=("sleep", "600"), env={"SECRET": "hunter2"})
    cluster.start()
    assert codes(cluster, 2) == {("node0", 1): 10, ("node1", 1): 11}
    for node in cluster.nodes:
        index, incarnation, address, control, name, secret = log(cluster, node).split()
        assert (int(index), int(incarnation), address, name) == (node.index, 1, node.address, node.name)
        assert control not in {each.address for each in cluster.nodes}
        assert secret == "hunter2"
    assert "hunter2" not in json.dumps(cluster._api.pods(cluster._place)), "no value of the environment is in an object"


def test_a_killed_node_leaves_nothing_and_its_logs_have_come(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch(*LOOP)
    node = started(cluster)
    assert isinstance(node, backend.KubeNode) and node.pod is not None
    pod = node.pod.name
    node.kill()
    assert not node.alive and node.pids() == []
    assert codes(cluster, 1) == {("node0", 1): -9}
    assert "heard" not in log(cluster, node), "nothing there was asked politely"
    assert [each.allocated for each in cluster.changes()] == [False]
    until(
        lambda: pod not in {each["metadata"]["name"] for each in cluster._api.pods(cluster._place)}, "the pod is gone"
    )
    with pytest.raises(NodeGone):
        node.kill()


def test_an_evicted_node_is_told_and_replaced(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch(*LOOP)
    node = started(cluster)
    node.evict(30)
    until(lambda: not node.alive, "the node is taken, long before its grace ends, as its command has left")
    assert codes(cluster, 1) == {("node0", 1): 9}
    assert "heard" in log(cluster, node)
    fresh = cluster.replace(node)
    assert (fresh.name, fresh.incarnation, fresh.alive) == ("node0", 2, True)
    until(lambda: "started" in log(cluster, fresh), "its command runs")
    assert [(each.incarnation, each.allocated) for each in cluster.changes()] == [(1, False), (2, True)]


def test_an_eviction_with_a_short_grace_ends_in_a_kill(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch("sh", "-c", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    node = started(cluster)
    node.evict(1)
    until(lambda: not node.alive, "the node is taken")
    assert codes(cluster, 1) == {("node0", 1): -9}


@pytest.mark.parametrize("how", ["drain", "taint"])
def test_a_machine_that_is_taken_is_given_back(
    launch: Callable[..., backend.KubeCluster], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CHAOS_KUBE_EVICT", how)
    if Verb.EVICT not in backend.KubernetesBackend().probe().verbs:
        pytest.skip("no right to change machines in this cluster")
    cluster = launch(*LOOP, control=("sleep", "600"))
    node = started(cluster)
    assert isinstance(node, backend.KubeNode) and node.pod is not None
    path = f"/api/v1/nodes/{node.pod.machine}"
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


def test_no_eviction_takes_the_control_host(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch("sleep", "600", control=("sleep", "600"))
    cluster.start()
    path = cluster._api.path(cluster._place.dialect.policy, "poddisruptionbudgets", cluster._place.control)
    until(lambda: cluster._api.get(path).get("status", {}).get("observedGeneration"), "the budget is known")
    with pytest.raises(Refused) as refused:
        cluster._api.evict(cluster._place.control, 1)
    assert refused.value.status == 429
    assert cluster.control_running


def test_signals_and_freezing(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch(*LOOP)
    node = started(cluster)
    node.freeze()
    until(lambda: {each.state for each in node.processes()} == {"T"}, "all stopped")
    node.thaw()
    until(lambda: any(each.state == "S" for each in node.processes()), "running again")
    assert node.signal(signal.SIGTERM) >= 1
    assert codes(cluster, 1) == {("node0", 1): 9}
    assert node.alive, "a node outlives its command"


def test_the_control_command_dies_and_starts_again(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch("sleep", "600", control=("sleep", "600"))
    cluster.start()
    cluster.kill_control()
    assert not cluster.control_running
    assert codes(cluster, 1) == {("control", 1): -9}
    cluster.restart_control()
    assert cluster.control_running


def test_files_of_faults_reach_a_replacement_too(launch: Callable[..., backend.KubeCluster]) -> None:
    cluster = launch("sh", "-c", "echo started; while :; do ls {run_dir}/holds; sleep 0.1; done")
    node = started(cluster)
    (cluster.run_dir / "holds" / "f.armed").touch()
    until(lambda: "f.armed" in log(cluster, node), "it is there")
    node.kill()
    fresh = cluster.replace(node)
    until(lambda: "f.armed" in log(cluster, fresh), "it is there, too")


def test_a_checkpoint_outlives_its_node(launch: Callable[..., backend.KubeCluster]) -> None:
    save = "cd {run_dir}/checkpoints && mkdir .tmp && echo $CHAOS_INCARNATION >.tmp/data && mv .tmp step-$CHAOS_INCARNATION"
    copied = "until [ -e {run_dir}/checkpoints/step-1 ]; do sleep 0.1; done"
    script = (
        f"ls {{run_dir}}/checkpoints; if [ {{index}} = 0 ]; then {save}; else {copied}; fi; echo started; sleep 600"
    )
    cluster = launch("sh", "-c", script, nodes=2)
    node, other = started(cluster), cluster.nodes[1]
    until(lambda: "started" in log(cluster, other), "the copy of its checkpoint is on the other node")
    node.kill()
    fresh = cluster.replace(node)
    until(lambda: "started" in log(cluster, fresh), "its command runs")
    assert "step-1" in log(cluster, fresh)


def test_a_killed_harness_leaves_nothing_after_heal(tmp_path: pathlib.Path) -> None:
    run_id = f"killed-{os.getpid()}"
    code = (
        "import pathlib, sys, time; from harness.backends.contract import Launch; from harness.backends.kubernetes import backend as b\n"
        "c = b.BACKEND.open(Launch(('sleep', '600'), 2, 1), pathlib.Path(sys.argv[1]), sys.argv[2]); c.start()\n"
        "print('up', flush=True); time.sleep(600)"
    )
    harness = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), run_id], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    assert harness.stdout.readline() == "up\n"
    harness.kill()
    harness.wait()
    harness.stdout.close()
    api = Api(read_settings())
    place = ClusterRun(run_id, read_settings())
    assert api.pods(place), "the harness had no chance to remove them"
    backend.UNDO(run_id, backend.BACKEND.whereabouts())
    assert api.pods(place) == []
    backend.UNDO(run_id, backend.BACKEND.whereabouts())  # and again: there is nothing left to do
    api.close()


def test_two_runs_side_by_side_do_not_touch_each_other(launch: Callable[..., backend.KubeCluster]) -> None:
    one, other = launch(*LOOP, name="one"), launch(*LOOP, name="two")
    node = started(other)
    one.start()
    one.close()
    assert node.alive and node.pids()


def test_what_cannot_run_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("CHAOS_KUBE_IMAGE", "chaos-there-is-no-such-image")
    monkeypatch.setenv("CHAOS_KUBE_PULL", "Never")
    with pytest.raises(backend.CannotRunError, match="ErrImageNeverPull"):
        backend.BACKEND.open(Launch(("true",), 1, 1), tmp_path, f"no-image-{os.getpid()}")


def test_missing_verbs_have_reasons() -> None:
    capability = backend.BACKEND.probe()
    for verb in Verb:
        assert (verb in capability.verbs) != bool(capability.missing.get(verb)), verb


def test_the_server_takes_every_request_that_it_knows() -> None:
    """As a dry run, with every setting that changes what a server must understand."""
    settings = read_settings({**os.environ, "CHAOS_KUBE_TOLERATIONS": "spot=yes:NoSchedule", "CHAOS_KUBE_GPUS": "1"})
    api = Api(settings)
    for wanted in manifests.render(Launch(("true",), 2, 4, notice_s=120), ClusterRun("dry", settings, api.dialect)):
        api.create(wanted, dry_run=True)
    api.close()
