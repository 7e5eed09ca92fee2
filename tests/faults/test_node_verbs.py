"""What can be done to a node of the local backend: it acts, it is measured by the kernel, and it can be undone."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator

import machine
import pytest
from waiting import until

from harness.backends.contract import Launch, Node
from harness.backends.local.backend import LocalCluster
from harness.errors import NodeGone, UsageError
from harness.node import cgroups, leftovers, processes

MIB = 2**20
# The first process burns CPU, the second holds memory and is the larger one.
BUSY = """
import os, time
if os.fork() == 0:
    block = bytearray(50 << 20)
    while True: time.sleep(60)
while True: pass
"""
_numbers = itertools.count()


@pytest.fixture(scope="module", params=["root", "user", "plain"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    mode = machine.need_mode(request.param)
    run_id = f"verbs-{os.getpid()}-{next(_numbers)}"
    workload = Launch((sys.executable, "-S", "-c", BUSY), 1, 1)
    with LocalCluster(workload, tmp_path_factory.mktemp("lab"), run_id, mode) as lab:
        lab.start()
        yield lab
    assert leftovers.leftovers(run_id) == []
    assert cgroups.leftovers(run_id) == []


@pytest.fixture
def node(cluster: LocalCluster) -> Node:
    """The busy node, new where a test killed something on it."""
    node = cluster.nodes[0]
    if not node.alive or len(node.pids()) != 2:
        if node.alive:
            node.kill()
        node = cluster.replace(node)
    until(lambda: len(node.pids()) == 2 and node.memory_use().used_bytes > 50 * MIB, "both processes")
    return node


def settings(cluster: LocalCluster) -> dict[str, str]:
    """Every limit of every group of this lab, byte for byte."""
    names = ("cpu.cfs_*", "cpu.max", "memory.*limit_in_bytes", "memory.max", "memory.swap.max")
    files = [file for group in cgroups.leftovers(cluster._run_id) for name in names for file in group.glob(name)]
    return {str(file): file.read_text() for file in files}


def states(node: Node) -> set[str]:
    return {each.state for each in node.processes()}


def test_what_is_frozen_stays_so_in_a_duty_cycle(node: Node) -> None:
    first = node.pids()[0]
    node.throttle(0.9)
    node.signal(signal.SIGSTOP, first)
    start = node.cpu_use()
    time.sleep(0.3)
    end = node.cpu_use()
    node.throttle(None)
    # Else it runs nine tenths of the time; between two signals it may be awake.
    assert (end.used_ns - start.used_ns) / (end.at_ns - start.at_ns) < 0.5
    until(lambda: [each.state for each in node.processes() if each.pid == first] == ["T"], "the stop to act")
    node.signal(signal.SIGCONT, first)
    assert "T" not in states(node)
    node.throttle(0.5)
    node.freeze()
    time.sleep(0.25)
    assert states(node) == {"T"}
    node.throttle(None)
    assert states(node) == {"T"}
    node.thaw()
    assert "T" not in states(node)


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_strangers_come_and_go_and_affinity_is_as_before(cluster: LocalCluster, node: Node, kind: str) -> None:
    def node_affinity() -> list[set[int]]:
        found = [item.process.pid for item in leftovers.leftovers(cluster._run_id) if item.node.startswith("node")]
        return [os.sched_getaffinity(pid) for pid in found]

    before = node_affinity()
    node.crowd(kind, 1.5)
    strangers = lambda: [each for each in processes.every() if "burner" in leftovers._command(each.pid)]  # noqa: E731
    until(lambda: len(strangers()) >= 2 and all(each.cpu_ticks for each in strangers()), "strangers at work")
    if len(os.sched_getaffinity(0)) > 1 and cluster._mode == "root":
        own = {cpu for each in strangers() for cpu in os.sched_getaffinity(each.pid)}
        assert all(cpus == own for cpus in node_affinity())
    assert len(node.pids()) == 2, "strangers are not the node's"
    node.crowd(kind, 0.5)
    node.crowd(kind, None)
    until(lambda: not strangers(), "the end of the strangers")
    assert node_affinity() == before
    with pytest.raises(UsageError, match="'disk'"):
        node.crowd("disk", 1)


@pytest.mark.parametrize(
    ("cluster", "keeper"),
    [("root", "kernel"), ("root", "watchdog"), ("user", "watchdog"), ("plain", "watchdog")],
    indirect=["cluster"],
)
def test_the_doomed_process_is_killed_for_memory(cluster: LocalCluster, node: Node, keeper: str) -> None:
    before, limits = node.memory_use(), settings(cluster)
    doomed = min(node.processes(), key=lambda each: -each.cpu_ns).pid  # not the largest one: the one that burns
    node.doom(doomed)
    assert node.limit_memory(before.used_bytes + 16 * MIB, keeper) == keeper
    node.fill_memory(32 * MIB, spare=True)
    until(lambda: doomed not in node.pids(), "the end of the doomed process")
    assert len(node.pids()) == 1
    assert node.alive
    assert node.memory_use().kills > before.kills
    node.limit_memory(None)
    assert settings(cluster) == limits


def test_nonsense_is_refused(node: Node) -> None:
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(UsageError, match=str(share)):
            node.throttle(share)
    with pytest.raises(UsageError, match="0 bytes"):
        node.limit_memory(0)
    with pytest.raises(UsageError, match="process 99999"):
        node.doom(99999)


def test_a_dead_node_is_gone_for_every_verb_and_takes_strangers_along(cluster: LocalCluster, node: Node) -> None:
    node.crowd("cpu", 1.0)
    node.throttle(0.5)
    node.kill()
    until(
        lambda: not [each for each in processes.every() if "burner" in leftovers._command(each.pid)],
        "the end of the strangers",
    )
    assert node.processes() == []
    for call in (lambda: node.throttle(None), lambda: node.limit_memory(None), lambda: node.crowd("cpu", None)):
        with pytest.raises(NodeGone):
            call()
