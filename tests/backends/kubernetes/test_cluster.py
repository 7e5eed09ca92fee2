"""The whole backend with real pods' inits, where what Kubernetes does is stood in for. See `stand_in`."""

import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import small_jobs
from backends.kubernetes import stand_in
from backends.kubernetes.clusters import LOOP, codes, log, pod_of, running, started
from backends.kubernetes.stand_in import StandIn
from scorecards import assert_verdict
from waiting import until

from harness.backends.contract import Launch, Verb
from harness.backends.kubernetes import backend, reclaim
from harness.backends.kubernetes.api import Refused
from harness.errors import BackendError, CannotRunError, NodeGone
from harness.evidence.logs import load_evidence
from harness.judge.score import judge
from harness.judge.verdict import Verdict
from harness.log.journal import is_closed
from harness.node import pod_init
from harness.run.job import execute
from harness.run.observers import Silent, Status

Open = Callable[..., backend.KubeCluster]


@pytest.fixture(params=[True, False], ids=["indexed jobs", "pods"])
def server(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    folder = tmp_path / "server"
    folder.mkdir()
    there = StandIn(folder, request.param)
    monkeypatch.setenv("CHAOS_KUBECONFIG", str(there.kubeconfig))
    monkeypatch.setattr(backend, "POD_RUN_DIR", stand_in.RUN_DIR)
    monkeypatch.setattr("harness.backends.kubernetes.mirror.POD_RUN_DIR", stand_in.RUN_DIR)
    yield there
    there.close()


@pytest.fixture
def launch(server: StandIn, tmp_path: pathlib.Path) -> Iterator[Open]:
    clusters = []

    def open_cluster(*command: str, nodes: int = 1, **more: Any) -> backend.KubeCluster:
        (tmp_path / "run" / "holds").mkdir(parents=True)
        cluster = backend.KubernetesBackend().open(Launch(command, nodes, 1, **more), tmp_path / "run", "r1")
        clusters.append(cluster)
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()
    assert not server.objects, "everything carries the run's label and is removed by it"


def test_a_job_runs_to_its_end(launch: Open) -> None:
    script = 'echo "{index} {incarnation} {control} $CHAOS_NODE $SECRET"; exit 1{index}'
    cluster = launch("sh", "-c", script, nodes=2, control=("sleep", "600"), env={"SECRET": "s"})
    cluster.start()
    assert cluster.control_running
    assert codes(cluster, 2) == {("node0", 1): 10, ("node1", 1): 11}
    assert [log(cluster, node) for node in cluster.nodes] == ["0 1 127.0.0.1 node0 s\n", "1 1 127.0.0.1 node1 s\n"]
    assert cluster.changes() == [], "the first nodes are told by whoever opened the cluster"


def test_killed_held_back_replaced(launch: Open, server: StandIn) -> None:
    """A replacement that Kubernetes brings at once waits until the capacity is said to be back."""
    save = "cd {run_dir}/checkpoints && mkdir .tmp && echo 1 >.tmp/data && mv .tmp step-{incarnation}"
    copied = "until [ -e {run_dir}/checkpoints/step-1 ]; do sleep 0.1; done"
    script = f"ls {{run_dir}}/checkpoints {{run_dir}}/holds; if [ {{index}} = 0 ]; then {save}; else {copied}; fi; echo started"
    cluster = launch("sh", "-c", f"{script}; sleep 600", nodes=2)
    cluster.start()
    (cluster.run_dir / "holds" / "f.armed").touch()
    node, other = cluster.nodes
    running(cluster, node)
    running(cluster, other)  # the copy of the checkpoint is there
    node.kill()
    assert not node.alive and node.pids() == []
    assert codes(cluster, 1) == {("node0", 1): -9}
    with pytest.raises(NodeGone):
        node.kill()
    if server.indexed:
        until(lambda: cluster._arrived, "the job controller has brought a pod")
        assert cluster.nodes[0] == node, "nobody has said that the capacity is back"
    fresh = cluster.replace(node)
    running(cluster, fresh)
    assert (fresh.name, fresh.incarnation, fresh.alive) == ("node0", 2, True)
    assert {"step-1", "f.armed"} <= set(log(cluster, fresh).split()), "checkpoints and files of faults are there"
    changes = [(each.incarnation, each.allocated, each.reason) for each in cluster.changes()]
    assert changes == [(1, False, "node lost"), (2, True, "")]


def test_evicted(launch: Open) -> None:
    cluster = launch(*LOOP, control=("sleep", "600"))
    node = started(cluster)
    with pytest.raises(Refused):
        cluster._api.evict(cluster._place.control, 1)
    node.evict(30)
    until(lambda: not node.alive, "it is taken as soon as its command has left")
    assert codes(cluster, 1) == {("node0", 1): 9}
    assert "heard" in log(cluster, node)
    assert cluster.control_running


def taking(cluster: backend.KubeCluster, how: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The cluster takes machines in this way. Returns what it does to them, which it only notes."""
    asked: list[object] = []
    cluster._place.settings.__dict__["evict"] = how
    cluster._way = reclaim.way_of(cluster._api, cluster._place)
    monkeypatch.setattr(reclaim._OfMachines, "_patch", lambda *given: asked.append(given))
    monkeypatch.setattr(reclaim._OfMachines, "heal", lambda *_: 0)
    return asked


@pytest.mark.parametrize("how", ["drain", "taint"])
def test_the_machine_of_the_control_host_is_never_taken(
    launch: Open, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """All pods are on the only machine. Refused before anything starts, and for a node that came there later."""
    cluster = launch(*LOOP)
    asked = taking(cluster, how, monkeypatch)
    with pytest.raises(CannotRunError, match="CHAOS_KUBE_CONTROL_SELECTOR"):
        cluster.nodes[0].evict(1)
    assert not asked and cluster.nodes[0].alive
    monkeypatch.setenv("CHAOS_KUBE_EVICT", how)
    with pytest.raises(CannotRunError, match="CHAOS_KUBE_CONTROL_SELECTOR"):
        backend.KubernetesBackend().open(Launch(LOOP, 1, 1), cluster.run_dir.parent / "second", "r2")


@pytest.mark.parametrize("how", ["taint", "command:true"])
def test_a_machine_with_two_nodes_is_not_taken_for_one(launch: Open, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    cluster = launch(*LOOP, nodes=2)
    taking(cluster, how, monkeypatch)
    assert cluster._control is not None
    cluster._control.machine = "another"
    with pytest.raises(CannotRunError, match=r"with node0 and node1.*CHAOS_KUBE_RESOURCES"):
        cluster.nodes[0].evict(1)


def test_preempted_by_the_scheduler(launch: Open, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of two on the same machine; the other one, and pods of others, stay where they are."""
    monkeypatch.setenv("CHAOS_KUBE_EVICT", "priority:urgent")
    cluster = launch(*LOOP, nodes=2, control=("sleep", "600"))
    node, other = started(cluster), cluster.nodes[1]
    running(cluster, other)
    node.evict(30)
    until(lambda: not node.alive, "it is taken as soon as its command has left")
    assert "heard" in log(cluster, node), "the scheduler deletes it with its own grace"
    until(lambda: ("pods", "chaos-r1-preemptor-0") in server.objects, "its place is taken")
    assert other.alive and cluster.control_running
    if server.indexed:
        until(lambda: [each for each in cluster._api.pods(cluster._place) if each["status"]["phase"] == "Pending"], "")
    fresh = cluster.replace(node)
    assert (fresh.name, fresh.incarnation, fresh.alive, other.alive) == ("node0", 2, True, True)
    assert ("pods", "chaos-r1-preemptor-0") not in server.objects
    running(cluster, fresh)  # before, it would not hear of it, and have all of its grace
    fresh.evict(30)
    until(lambda: not fresh.alive, "it can be taken again, and what took it is removed at the end")


@pytest.mark.parametrize(
    ("priorities", "never", "said"),
    [((0, 0), False, "not above that of our pods, 0"), ((9, 0), True, "never preempts"), ((9, 0), False, "")],
)
def test_a_class_that_cannot_preempt_is_told_before(
    server: StandIn, priorities: tuple[int, int], never: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_KUBE_EVICT", "priority:urgent")
    higher, ours = priorities

    def admit(wanted: dict[str, Any]) -> None:
        """As the admission of priorities does, on a dry run as well."""
        asked = "priorityClassName" in wanted.get("spec", {})
        wanted.setdefault("spec", {})["priority"] = higher if asked else ours
        if asked and never:
            wanted["spec"]["preemptionPolicy"] = "Never"

    monkeypatch.setattr(server, "admit", admit)
    assert said in backend.KubernetesBackend().probe().missing.get(Verb.EVICT, "")


def test_a_command_of_the_site_reclaims_and_restores(
    launch: Open, server: StandIn, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "reclaim"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n[ "$3" != reclaim ] || exit "$(cat {tmp_path}/code)"')
    program.chmod(0o700)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("CHAOS_KUBE_EVICT", f"command:{program} --zone a")
    monkeypatch.setattr(backend.KubeCluster, "_refuse_machine", lambda *_: None)  # there is only one machine
    cluster = launch(*LOOP)
    node = started(cluster)
    node.evict(119.5)
    server.delete("pods", pod_of(node).name, 0)  # what the cloud then does
    until(lambda: not node.alive, "gone")
    fresh = cluster.replace(node)
    (tmp_path / "code").write_text("4")
    with pytest.raises(BackendError, match="reclaim --zone a: exit code 4"):
        fresh.evict(30)
    cluster.close()
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--zone a reclaim m1 120 r1",
        "--zone a restore m1 r1",
        "--zone a reclaim m1 30 r1",
        "--zone a heal r1",
    ]


def test_a_machine_that_vanishes_is_a_lost_node(launch: Open, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing closes the line to it; its silence tells."""
    monkeypatch.setattr(pod_init, "SILENT_S_MAX", 6.0)
    monkeypatch.setattr(backend, "BEAT_S", 0.5)
    monkeypatch.setattr("harness.backends.kubernetes.pod.BEAT_S_MAX", 2.0)
    cluster = launch(*LOOP)
    node = started(cluster)
    time.sleep(7.0)
    assert node.alive, "it answers"
    init = server.pods[pod_of(node).name].process.pid
    for child in pathlib.Path(f"/proc/{init}/task/{init}/children").read_text().split():
        os.kill(int(child), signal.SIGSTOP)
    until(lambda: not node.alive, "silent for too long")


def test_lost_unasked(launch: Open, server: StandIn) -> None:
    """Its job brings it back, and it starts at once; a pod without an owner is lost for good."""
    cluster = launch(*LOOP)
    node = started(cluster)
    server.delete("pods", pod_of(node).name, 0)
    until(lambda: not node.alive, "gone")
    assert cluster.waiting == server.indexed
    if server.indexed:
        until(lambda: cluster.nodes[0].incarnation == 2 and "started" in log(cluster, cluster.nodes[0]), "back")
        assert not cluster.waiting


def test_signals_freezing_and_control(launch: Open) -> None:
    cluster = launch(*LOOP, control=("sleep", "600"))
    node = started(cluster)
    node.freeze()
    # D: the shell waits in vfork for a child that was stopped before it ran its program
    until(lambda: {each.state for each in node.processes()} in ({"T"}, {"T", "D"}), "all stopped")
    node.thaw()
    arrivals = node.send_packets(None, 20, 0.002, wait_s=60.0)
    assert (arrivals.sent, arrivals.received) == (20, 20)
    until(lambda: node.fill_path(None, 0.3) > 1e6, "a stream that gets through")  # other work makes it slower
    cluster.kill_control()
    assert codes(cluster, 1) == {("control", 1): -9}
    cluster.restart_control()
    assert cluster.control_running
    assert node.signal(signal.SIGTERM) >= 1
    assert codes(cluster, 1) == {("node0", 1): 9}
    assert node.alive, "a node outlives its command"


def test_clocks_of_other_machines_are_compared(launch: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pods' machine is ours, which the backend is not told: the true offsets are zero."""
    monkeypatch.setattr(backend, "clock_id", lambda: "another machine's")
    began_ns = time.monotonic_ns()
    cluster = launch("sleep", "600", nodes=2)
    readings = cluster.clocks()
    assert len(readings) == 3, "the control host and two nodes"
    assert all(abs(each.offset_ns) <= each.uncertainty_ns for each in readings)
    assert all(0 < abs(pod_of(node).mono_offset_ns) < time.monotonic_ns() - began_ns for node in cluster.nodes)


def test_what_ignores_sigterm_does_not_outlive_its_run(launch: Open, server: StandIn) -> None:
    cluster = launch("sh", "-c", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    started(cluster)
    cluster.close()
    assert {pod.process.wait() for pod in server.pods.values()} == {0}, "nobody had to be killed by the kubelet"


def test_what_a_killed_harness_leaves_is_removed_by_its_label(launch: Open, server: StandIn) -> None:
    cluster = launch("sleep", "600")
    cluster.start()
    ours = next(each for (plural, _), each in server.objects.items() if plural == "pods")
    server.create("pods", {**ours, "metadata": {"name": "stranger", "labels": {"chaos.run_id": "r2"}}})
    for _ in range(2):  # the second time there is nothing left to do
        backend.UNDO("r1", backend.BACKEND.whereabouts())
        assert [name for _, name in server.objects] == ["stranger"]
    server.delete("pods", "stranger", 0)
    until(lambda: not server.objects, "gone")


def test_an_api_server_that_restarts_leaves_a_run_that_is_judged(server: StandIn, tmp_path: pathlib.Path) -> None:
    class Restarts(Silent):
        def status(self, status: Status) -> None:
            if any("started" in log.read_text() for log in (run_dir / "logs").glob("node0.1.log")):
                server.restart()

    run_dir = tmp_path / "run"
    plan = small_jobs.job("restarted", LOOP, backend="kubernetes", steps=10)
    outcome = execute(plan, run_dir, backend.BACKEND, Restarts())
    assert outcome.outcome == "broken" and "the control host is lost" in outcome.reason, outcome
    assert_verdict(judge(load_evidence(run_dir), "restarted"), Verdict.INCONCLUSIVE, "the control host is lost")
    assert not server.objects and is_closed(run_dir)
