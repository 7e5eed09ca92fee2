"""The Slurm backend against a real Slurm of several nodes. In CI its absence is a failure."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from harness.backend import Verb, Workload
from harness.backends import slurm as backend
from harness.backends.slurm import SlurmBackend, SlurmCluster
from harness.errors import CannotRunError, NodeGone, UsageError
from harness.slurm.engine import Slurm, find_slurm

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "engines" / "slurm.sh"
SLEEP = Workload(("sleep", "600"), nodes=2, ranks_per_node=1)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """The Slurm at hand; starts ours if it is installed and none runs, and ends it then."""
    ours = False
    if not SlurmBackend().probe().available and shutil.which("slurmctld") and os.geteuid() == 0:
        subprocess.run([str(ENGINE), "start"], check=True, timeout=60)
        ours = True
    capability = SlurmBackend().probe()
    if not capability.available:
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop(f"no Slurm: {capability.summary}")
    yield find_slurm()
    if ours:
        subprocess.run([str(ENGINE), "stop"], check=True, timeout=60)


@pytest.fixture
def opened(slurm: Slurm, tmp_path: pathlib.Path) -> Iterator[Callable[..., SlurmCluster]]:
    clusters = []

    def open_cluster(workload: Workload = SLEEP, name: str = "a") -> SlurmCluster:
        run_dir = tmp_path / name
        run_dir.mkdir()
        cluster = SlurmBackend().open(workload, run_dir, f"test-{os.getpid()}-{name}")
        clusters.append(cluster)
        cluster.start()
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def until(what: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def running(cluster: SlurmCluster) -> list[list[int]]:
    until(lambda: all(node.pids() for node in cluster.nodes))
    return [node.pids() for node in cluster.nodes]


def shell(text: str, nodes: int = 2) -> Workload:
    return Workload(("bash", "-c", text), nodes=nodes, ranks_per_node=1, env={"SAYS": "a 'b', c"})


def said(cluster: SlurmCluster, key: str) -> str:
    path = cluster._run_dir / "logs" / f"{key}.log"
    return path.read_text() if path.exists() else ""


def test_the_probe_tells_what_can_be_done(slurm: Slurm) -> None:
    capability = SlurmBackend().probe()
    assert capability.available
    assert {Verb.SIGNAL, Verb.FREEZE} <= capability.verbs
    assert (Verb.KILL in capability.verbs) == slurm.takes_nodes
    assert set(capability.missing) == set(Verb) - capability.verbs and all(capability.missing.values())


def test_without_slurm_the_probe_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHAOS_ENGINES_DIR", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    capability = SlurmBackend().probe()
    assert not capability.available and "sbatch" in capability.summary
    with pytest.raises(CannotRunError):
        SlurmBackend().open(SLEEP, tmp_path, "x")
    backend.undo("x")  # nothing can have been submitted


def test_nodes_run_their_command_and_their_exits_are_told(opened: Callable[..., SlurmCluster]) -> None:
    text = 'echo "{index} {address} {incarnation} $CHAOS_NODE $CHAOS_INCARNATION $CHAOS_RUN_ID $SAYS"; exit $((3 * {index}))'
    cluster = opened(shell(text))
    until(lambda: not cluster.waiting)
    assert sorted((end.node, end.incarnation, end.code) for end in cluster.exits()) == [
        ("node0", 1, 0),
        ("node1", 1, 3),
    ]
    for node in cluster.nodes:
        line = f"{node.index} {node.address} 1 {node.name} 1 test-{os.getpid()}-a a 'b', c\n"
        assert said(cluster, f"{node.name}.1") == line
    assert cluster.nodes[0].address != cluster.nodes[1].address
    assert cluster.changes() == [] and all(node.alive for node in cluster.nodes)


def test_nothing_runs_before_the_start(slurm: Slurm, tmp_path: pathlib.Path) -> None:
    with SlurmBackend().open(shell("echo here"), tmp_path, f"test-{os.getpid()}-idle") as cluster:
        time.sleep(1.0)
        assert not list((tmp_path / "logs").glob("node*")) and all(node.alive for node in cluster.nodes)


def test_a_signal_reaches_all_of_one_node_and_nothing_else(opened: Callable[..., SlurmCluster]) -> None:
    cluster = opened(shell("sleep 600 & sleep 600 & trap 'echo told; exit 4' TERM; wait; wait"))
    first, second = cluster.nodes
    before = running(cluster)
    until(lambda: len(second.pids()) == 3)
    assert second.signal(signal.SIGKILL, max(second.pids())) == 1
    until(lambda: len(second.pids()) == 2)
    assert second.signal(signal.SIGKILL, 1) == 0  # not one of the run's
    assert second.signal(signal.SIGTERM) == 2
    until(lambda: second.pids() == [])
    assert "told" in said(cluster, "node1.1") and "told" not in said(cluster, "node0.1")
    until(lambda: cluster._exits)
    assert [(end.node, end.code) for end in cluster.exits()] == [("node1", 4)]
    assert set(before[0]) <= set(first.pids())


def test_a_frozen_node_stands_still(opened: Callable[..., SlurmCluster]) -> None:
    cluster = opened(shell("while :; do echo x; sleep 0.05; done"))
    until(lambda: len(said(cluster, "node0.1")) > 4)
    cluster.nodes[0].freeze()
    frozen, other = len(said(cluster, "node0.1")), len(said(cluster, "node1.1"))
    time.sleep(0.5)
    assert len(said(cluster, "node0.1")) == frozen and len(said(cluster, "node1.1")) > other
    cluster.nodes[0].thaw()
    until(lambda: len(said(cluster, "node0.1")) > frozen)


def test_a_killed_node_leaves_nothing_and_its_job_starts_again(
    slurm: Slurm, opened: Callable[..., SlurmCluster]
) -> None:
    cluster = opened()
    running(cluster)
    victim, peer = cluster.nodes
    victim.kill()
    assert not victim.alive and victim.pids() == []
    with pytest.raises(NodeGone):
        victim.signal(signal.SIGTERM)
    with pytest.raises(UsageError, match="still there"):
        cluster.replace(peer)
    fresh = cluster.replace(victim)
    until(lambda: fresh.alive)
    assert [node.incarnation for node in cluster.nodes] == [2, 2] and cluster.nodes[0] is fresh
    running(cluster)
    ends = {(end.node, end.incarnation): end.code for end in cluster.exits()}
    assert set(ends) == {("node0", 1), ("node1", 1)} and all(code < 0 for code in ends.values())
    changes = [(change.node, change.incarnation, change.allocated) for change in cluster.changes()]
    assert changes == [("node0", 1, False), ("node1", 1, False), ("node0", 2, True), ("node1", 2, True)]


def test_a_job_whose_node_will_not_come_back_shrinks(opened: Callable[..., SlurmCluster]) -> None:
    cluster = opened()
    running(cluster)
    lost, survivor = cluster.nodes
    lost.kill()
    cluster.give_up(lost)
    until(lambda: cluster.nodes[0].incarnation == 2 and cluster.nodes[0].alive)
    assert not cluster.nodes[1].alive and cluster.nodes[1] is survivor
    until(lambda: cluster.nodes[0].pids())


def test_slurm_evicts_by_a_job_of_higher_priority(slurm: Slurm, opened: Callable[..., SlurmCluster]) -> None:
    cluster = opened(shell("trap 'echo told; exit 75' TERM; sleep 600 & wait"))
    running(cluster)
    victim = cluster.nodes[1]
    victim.evict(0)
    until(lambda: not victim.alive)
    assert "told" in said(cluster, "node1.1")
    fresh = cluster.replace(victim)
    until(lambda: fresh.alive)
    assert [node.incarnation for node in cluster.nodes] == [2, 2]


def test_a_notice_to_the_batch_script_ends_in_a_requeue(slurm: Slurm, opened: Callable[..., SlurmCluster]) -> None:
    """What `--signal=B:USR1@…` does before a time limit: tasks are told, leave with a code, and the job queues again."""
    cluster = opened(shell("[ {incarnation} = 2 ] && exit 0; trap 'exit 75' TERM; sleep 600 & wait"))
    running(cluster)
    slurm.run("scancel", "--batch", "--signal=USR1", str(cluster._job_id))
    until(lambda: (job := slurm.job(cluster._job_id)) and job.pending and job.restarts == 1)
    assert cluster.waiting
    time.sleep(backend.SETTLED_S)
    slurm.run("scontrol", "update", f"jobid={cluster._job_id}", "StartTime=now")
    until(lambda: not cluster.waiting)
    codes = sorted((end.incarnation, end.code) for end in cluster.exits())
    assert codes == [(1, 75), (1, 75), (2, 0), (2, 0)]


def test_two_runs_do_not_touch_each_other(slurm: Slurm, opened: Callable[..., SlurmCluster]) -> None:
    one, two = opened(name="one"), opened(name="two")
    running(one)
    before = running(two)
    one.nodes[0].signal(signal.SIGKILL)
    one.close()
    assert [node.pids() for node in two.nodes] == before
    assert slurm.jobs_named(f"chaos-test-{os.getpid()}-one") == []


KILLED_HARNESS = """
import pathlib, sys, os, signal
from harness.backend import Workload
from harness.backends.slurm import SlurmBackend
cluster = SlurmBackend().open(Workload(("sleep", "600"), 2, 1), pathlib.Path(sys.argv[1]), sys.argv[2])
cluster.start()
cluster.nodes[1].kill()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_harness_is_undone(slurm: Slurm, tmp_path: pathlib.Path) -> None:
    run_id = f"test-{os.getpid()}-killed"
    done = subprocess.run([sys.executable, "-c", KILLED_HARNESS, str(tmp_path), run_id], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert slurm.jobs_named(f"chaos-{run_id}")
    backend.undo(run_id)
    assert slurm.jobs_named(f"chaos-{run_id}") == []
    count = slurm.count_nodes()
    until(lambda: len(slurm.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", "--partition=low").split()) == count)
    backend.undo(run_id)  # nothing is left to do


def test_more_nodes_than_there_are_is_one_clear_message(slurm: Slurm, tmp_path: pathlib.Path) -> None:
    with pytest.raises(CannotRunError, match="999 nodes"):
        SlurmBackend().open(Workload(("true",), 999, 1), tmp_path, f"test-{os.getpid()}-many")
