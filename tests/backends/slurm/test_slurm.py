"""The Slurm backend against a real Slurm of several nodes."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import machine
import pytest
from conformance.places import fuse_mounts_below, processes_of
from waiting import until

from harness.backends.contract import Launch, Traffic, Verb
from harness.backends.slurm import backend, capability
from harness.backends.slurm.backend import SlurmBackend, SlurmCluster
from harness.backends.slurm.engine import Slurm, find_slurm
from harness.errors import CannotRunError, UsageError
from harness.node import owner_names
from harness.node.types import StorageRule

ROOT = pathlib.Path(__file__).resolve().parents[3]


SLEEP = Launch(("sleep", "600"), nodes=2, ranks_per_node=1)


Open = Callable[..., SlurmCluster]


@pytest.fixture(scope="module")
def slurm(slurm_up: None) -> Slurm:
    """The Slurm at hand, or ours."""
    return find_slurm()


@pytest.fixture
def opened(slurm: Slurm, tmp_path: pathlib.Path) -> Iterator[Open]:
    clusters = []

    def open_cluster(workload: Launch = SLEEP, name: str = "a") -> SlurmCluster:
        run_dir = tmp_path / name
        run_dir.mkdir()
        cluster = SlurmBackend().open(workload, run_dir, f"test-{os.getpid()}-{name}")
        clusters.append(cluster)
        cluster.start()
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def running(cluster: SlurmCluster) -> list[list[int]]:
    until(lambda: all(node.pids() for node in cluster.nodes), "processes on all nodes")
    return [node.pids() for node in cluster.nodes]


def shell(text: str, nodes: int = 2) -> Launch:
    return Launch(("bash", "-c", text), nodes=nodes, ranks_per_node=1, env={"SAYS": "a 'b', c"})


def said(cluster: SlurmCluster, key: str) -> str:
    path = cluster.run_dir / "logs" / f"{key}.log"
    return path.read_text() if path.exists() else ""


def test_without_slurm_the_probe_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHAOS_ENGINES_DIR", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    capability = SlurmBackend().probe()
    assert not capability.available and "sbatch" in capability.summary
    with pytest.raises(CannotRunError):
        SlurmBackend().open(SLEEP, tmp_path, "x")
    with pytest.raises(CannotRunError, match="no Slurm here"):
        backend.UNDO("x", backend.BACKEND.whereabouts())  # the run stays open, and this says why


def test_nodes_have_the_switches_of_the_topology(slurm: Slurm, opened: Callable[..., SlurmCluster]) -> None:
    if "leaf0" not in slurm.run("scontrol", "show", "topology"):
        pytest.skip("this Slurm was started without the topology of engines/slurm.sh")
    cluster = opened(shell("sleep 600", nodes=3))
    hosts = [cast(Any, node).host for node in cluster.nodes]
    assert cluster.node_labels("switch") == ["leaf0" if host in ("n1", "n2") else "leaf1" for host in hosts]
    assert set(cluster.node_labels("switch:1")) == {"spine"}


def test_nothing_runs_before_the_start(slurm: Slurm, tmp_path: pathlib.Path) -> None:
    with SlurmBackend().open(shell("echo here"), tmp_path, f"test-{os.getpid()}-idle") as cluster:
        time.sleep(1.0)
        assert not list((tmp_path / "logs").glob("node?.1.log")) and all(node.alive for node in cluster.nodes)
        assert (Verb.KILL in SlurmBackend().probe().verbs) == slurm.takes_nodes


def test_a_job_whose_node_will_not_come_back_shrinks(opened: Open) -> None:
    cluster = opened()
    running(cluster)
    lost, survivor = cluster.nodes
    lost.kill()
    cluster.give_up(lost)
    until(lambda: cluster.nodes[0].incarnation == 2 and cluster.nodes[0].alive, "the second incarnation")
    assert not cluster.nodes[1].alive and cluster.nodes[1] is survivor
    until(lambda: cluster.nodes[0].pids(), "its processes")


TOLD = shell(
    "[ {incarnation} = 2 ] && sleep 2 && exit 0; trap 'echo told; exit 75' TERM; echo ready; while :; do sleep 0.2; done"
)


def network_of(host: str) -> str:
    """What there is in the kernel of the network of a node of engines/slurm.sh: devices, queues, packet rules."""
    engines = pathlib.Path(os.environ.get("CHAOS_ENGINES_DIR", "/var/lib/chaos-engines"))
    enter = ["nsenter", "--target", (engines / f"slurm/run/{host}.ns").read_text().strip(), "--net"]
    commands = ("ip -brief link", "tc qdisc", "nft list ruleset")
    return "\n".join(subprocess.check_output([*enter, *command.split()], text=True) for command in commands)


def test_the_network_of_a_node_is_as_it_was_when_the_job_is_over(slurm: Slurm, opened: Open) -> None:
    """The node goes on living after the job, unlike a container; also when Slurm and not the harness ends it."""
    if "engines/slurm.sh" not in slurm.label:
        pytest.skip("the nodes are not on this machine")
    machine.need("nsenter", "ip", "tc", "nft")
    cluster = opened(TOLD)
    running(cluster)
    node, other = cluster._nodes
    host = node.host
    before = network_of(host)
    node.limit_rate(10**7, Traffic())
    node.cut(Traffic("ingress", (other,)))
    assert network_of(host) != before
    slurm.run("scontrol", "requeue", str(cluster._job_id))
    until(lambda: not node.alive, "the end of the node")
    until(lambda: network_of(host) == before, "the network as it was")


SAVES_IN_STORE = Launch(
    ("bash", "-c", "while :; do echo now >{run_dir}/store/$CHAOS_NODE; sleep 0.05; done"), 2, 1, mounts=("store",)
)


@pytest.mark.parametrize("end", ["requeue", "cancel", "power"])
def test_storage_without_power_ends_with_the_job_and_comes_back_with_it(end: str, slurm: Slurm, opened: Open) -> None:
    """What waits for such storage must not keep Slurm from ending the job, and nothing of it may stay on the node."""
    if "engines/slurm.sh" not in slurm.label:
        pytest.skip("the nodes are not on this machine")
    cluster = opened(SAVES_IN_STORE)
    store, node = cluster.run_dir / "store", cluster.nodes[1]
    until(lambda: len(list(store.iterdir())) == 2, "a save of each node")
    assert len({line.split()[0] for line in fuse_mounts_below(cluster.run_dir)}) >= 6, "each node's three processes"
    cut = node.disturb_storage("store", StorageRule(operations=("write",), power="prefix"))
    until(lambda: cut.counts()["cut"], "the power loss")
    if end == "power":
        node.kill()
    else:
        slurm.run(*{"requeue": ("scontrol", "requeue"), "cancel": ("scancel",)}[end], str(cluster._job_id))
    until(lambda: not node.alive or not cluster.waiting, "the end of the node or of the job")
    left = lambda: [*processes_of(cluster._run_id), *fuse_mounts_below(cluster.run_dir)]  # noqa: E731
    until(lambda: not left(), "the end of all that was there")
    cut.heal()
    if end == "power":
        (store / "node1").unlink()
        fresh = cluster.replace(node)
        until(lambda: fresh.alive and (store / "node1").exists(), "its save")  # its task may be there before we know
        assert fresh.incarnation == 2
        fresh.disturb_storage("store", StorageRule(operations=("write",), error="EIO"))
        until(lambda: "Input/output error" in said(cluster, "node1.2"), "a failed save")
        assert "error" not in said(cluster, "node0.2")


@pytest.mark.parametrize("way", ["priority", "drain", "requeue", "signal"])
def test_slurm_evicts_in_each_of_its_ways(
    way: str, slurm: Slurm, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks are told and leave, the whole job is requeued, and it starts again once the place is given back."""
    monkeypatch.setenv("CHAOS_SLURM_EVICTION", way)
    cluster = opened(TOLD)
    running(cluster)
    until(lambda: "ready" in said(cluster, "node1.1"), "its command")
    victim = cluster._nodes[1]
    host = victim.host
    victim.evict(0)
    until(lambda: not victim.alive, "the end of the node")
    until(lambda: "told" in said(cluster, "node1.1"), "the notice")  # its last words may come after the job's end
    state = lambda: slurm.run("sinfo", "--noheader", "--nodes", host, "--format=%T").split()[0]  # noqa: E731
    assert state().startswith("drain") == (way == "drain"), state()
    fresh = cluster.replace(victim)
    until(lambda: fresh.alive, "the replacement")
    assert [node.incarnation for node in cluster.nodes] == [2, 2]
    until(lambda: not cluster.waiting, "the whole job")
    codes = {(end.node, end.incarnation): end.code for end in cluster.exits()}
    assert codes["node0", 2] == codes["node1", 2] == 0 and codes["node1", 1] != 0
    assert not state().startswith("drain"), "what was drained in the name of a run is given back"


def test_a_node_that_is_set_down_is_lost_and_comes_back(
    slurm: Slurm, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `scontrol update state=down` does, where nothing can cut the power. What ran there resists, so that the
    node tells late of its end: Slurm would take that for the end of the job that runs there by then."""
    monkeypatch.setenv("CHAOS_SLURM_POWER", "none")
    stubborn = shell("[ {index} = 0 ] || trap '' TERM; while :; do sleep 1; done")
    with SlurmBackend().open(stubborn, tmp_path, f"test-{os.getpid()}-down") as cluster:
        cluster.start()
        running(cluster)
        victim = cluster._nodes[1]
        host = victim.host
        victim.kill()
        assert not victim.alive and victim.pids() == []
        until(lambda: not [line for line in processes_of(cluster._run_id) if "node1.1" in line], "the end of node1.1")
        fresh = cluster.replace(victim)
        until(lambda: fresh.alive, "the replacement")
        assert [node.incarnation for node in cluster.nodes] == [2, 2]
        running(cluster)
        time.sleep(6.0)  # longer than the node could still have something to tell
        line, cluster._nodes[1]._line = cluster._nodes[1]._line, None
        assert line is not None
        line.close()
        assert fresh.pids(), "a new step starts there: the node is still the job's"
    assert host not in slurm.run("sinfo", "--noheader", "--Node", "--states=down,drain", "--format=%N")


def test_what_slurm_does_not_have_is_one_clear_message(
    slurm: Slurm, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotRunError, match="999 nodes"):
        SlurmBackend().open(Launch(("true",), 999, 1), tmp_path, f"test-{os.getpid()}-many")
    monkeypatch.setenv("CHAOS_SLURM_EVICTION", "politely")
    with pytest.raises(UsageError, match="'politely'"):
        SlurmBackend().probe()


DIES = """
import os, pathlib, signal, sys, time
from harness.backends.contract import Launch
from harness.backends.slurm import backend, script
backend.BEAT_S, silent_s = 0.5, 6
script.SILENT_S_MAX = silent_s
script._WATCH = script._WATCH.rpartition(" ")[0] + f" {silent_s}"
run_dir = pathlib.Path(sys.argv[1])
run_dir.mkdir()
cluster = backend.BACKEND.open(Launch(("sleep", "600"), nodes=2, ranks_per_node=1), run_dir, sys.argv[2])
cluster.start()
while not all(cluster.nodes[index].pids() for index in (0, 1)):
    time.sleep(0.1)
time.sleep(silent_s + 2)
assert cluster.waiting and all(node.alive for node in cluster.nodes), "a living harness keeps its job"
if len(sys.argv) > 3:
    cluster.nodes[1].evict(0.0)
    while not any("evictor" in job.name and job.running for job in cluster._slurm.jobs()):
        time.sleep(0.1)
print("killed", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("evicted", [False, True])
def test_a_job_whose_harness_is_gone_ends_by_itself(slurm: Slurm, tmp_path: pathlib.Path, evicted: bool) -> None:
    """Nobody undoes anything here: no reverter was started, and none will come."""
    run_id = f"test-{os.getpid()}-gone{evicted:d}"
    words = [sys.executable, "-c", DIES, str(tmp_path / "run"), run_id, *(["evict"] if evicted else [])]
    env = os.environ | {"CHAOS_SLURM_EVICTION": "priority"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == "killed\n", done.stderr
    try:
        # Slurm lets a requeued job wait for two minutes; then it starts, and finds its harness gone.
        ends = [f"chaos-{run_id}-evictor1"] if evicted else [f"chaos-{run_id}"]
        until(lambda: not slurm.jobs_named(*ends), "the end of the job")
        until(lambda: not processes_of(run_id), "the end of its processes")
    finally:
        backend.UNDO(run_id, backend.BACKEND.whereabouts())


def test_a_probe_whose_harness_is_gone_is_swept(slurm: Slurm) -> None:
    kind, since, boot, namespace, pid, start, rest = owner_names.new_name(capability.PROBE).split("-")
    dead = f"chaos-{kind}-{since}-{boot}-{namespace}-{pid}-{int(start) - 1}-{rest}"
    alive = f"chaos-{owner_names.new_name(capability.PROBE)}"
    for name in (dead, alive):
        slurm.submit("--nodes=1", f"--job-name={name}", "--output=/dev/null", "--chdir=/", "--wrap=exec sleep 60")
    try:
        assert SlurmBackend().sweep(dry_run=True) == [f"Slurm job {dead}"] and len(slurm.jobs_named(dead, alive)) == 2
        assert SlurmBackend().sweep() == [f"Slurm job {dead}"]
        assert [job.name for job in slurm.jobs_named(dead, alive)] == [alive]
    finally:
        slurm.cancel(dead, alive)
