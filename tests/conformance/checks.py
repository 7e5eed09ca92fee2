"""One check a verb: it acts, which is measured and not believed, and once healed it acts no more."""

import contextlib
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from conformance.places import STORE, Job, processes_of
from waiting import until

from harness.backends.contract import Disturbance, Node, Traffic, Verb
from harness.errors import NodeGone
from harness.node import gpu_health, skew
from harness.node.types import Impairment, StorageRule

MIB = 2**20
PACKETS = 40
WAIT_S = 30.0  # for the last packets; there is no wait where all have come
CHECKS: dict[Verb, Callable[[Job], None]] = {}


def check(verb: Verb) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """The check's docstring says in the documentation how the verb is measured."""

    def register(function: Callable[[Job], None]) -> Callable[[Job], None]:
        CHECKS[verb] = function
        return function

    return register


@contextlib.contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """In any case: what a check that fails leaves in the shared job would fail the checks that follow."""
    try:
        yield
    finally:
        undo()


def stands_still(job: Job, node: Node, seconds: float = 0.4) -> bool:
    before = job.steps(node)
    time.sleep(seconds)
    return job.steps(node) == before


def received(node: Node, peer: Node | None, **more: Any) -> int:
    return node.send_packets(peer, PACKETS, 0.002, wait_s=1.0, **more).received


def fullest(node: Node, peer: Node, enough: float, seconds: float, back: bool = False) -> float:
    """Bits a second of a full path, once they are enough: a busy host makes them fewer, never more."""

    def look() -> float:
        found = node.fill_path(peer, seconds, back)
        return found if found > enough else 0.0

    return until(look, f"more than {enough:g} bits a second")


def shares(node: Node, seconds: float = 1.0) -> tuple[float, float]:
    """Of one CPU: what the node's processes got, and for how much of the time they were kept from running."""
    before = node.cpu_use()
    time.sleep(seconds)
    after = node.cpu_use()
    elapsed_ns = after.at_ns - before.at_ns
    return (after.used_ns - before.used_ns) / elapsed_ns, (after.throttled_ns - before.throttled_ns) / elapsed_ns


@check(Verb.SIGNAL)
def signal_arrives(job: Job) -> None:
    """the node's processes hear it, those of the other node and of this machine do not"""
    node, other = job.nodes
    assert node.signal(signal.SIGCONT) >= 2
    assert node.signal(signal.SIGTERM, min(node.pids())) == 1
    until(lambda: [event["source"] for event in job.events(node, "notice")] == ["signal"], "SIGTERM")
    assert job.events(other, "notice") == []
    with subprocess.Popen(["sleep", "300"]) as bystander:  # in a PID namespace its number is nobody's: it is too high
        assert node.signal(signal.SIGKILL, bystander.pid) == 0 and bystander.poll() is None
        bystander.kill()
    job.wait_steps(node)


@check(Verb.FREEZE)
def frozen_node_stands_still(job: Job) -> None:
    """steps in 0.4 s: none on the node, some on the other; both go on once thawed"""
    node, other = job.nodes
    node.freeze()
    with undone(node.thaw):
        others = job.steps(other)
        assert stands_still(job, node) and node.pids() and node.alive
        job.wait_steps(other, others + 1 - job.steps(other))
    job.wait_steps(node, 3)


@check(Verb.NOTICE)
def notice_is_read(job: Job) -> None:
    """the node's worker, which asks the metadata endpoint, reads it; the other node's does not"""
    node, other = job.nodes
    assert node.notice_seen() == 0
    node.notice("ec2", 30.0)
    until(lambda: "ec2" in [event["source"] for event in job.events(node, "notice")], "the notice")
    assert node.notice_seen() >= 1
    assert "ec2" not in [event["source"] for event in job.events(other, "notice")]


@check(Verb.EVICT)
def engine_evicts(job: Job) -> None:
    """its processes are told first, and when its time is over the node is gone"""
    node = job.nodes[1]
    job.wait_steps(node)
    asked = time.monotonic()
    node.evict(8.0)
    until(lambda: job.events(node, "notice", 1), "the engine's notice")
    until(lambda: not node.alive, "the end of the node")
    assert job.place.backend_name != "docker" or time.monotonic() - asked >= 8.0  # of others the site decides
    assert job.wait_exits(1)[node.name, 1] != 0


@check(Verb.NET_RATE)
def rate_is_kept(job: Job) -> None:
    """bits a second of a full path, each direction"""
    node, other = job.nodes
    limit = node.limit_rate(50_000_000, Traffic())
    with undone(limit.heal):
        for back in (False, True):
            assert fullest(node, other, 35e6, 0.8, back) < 65e6
    fullest(node, other, 100e6, 0.5)


@check(Verb.NET_DELAY)
def packets_come_later(job: Job) -> None:
    """delay of each of 40 packets, and bits a second of a full path, so that a delay costs time alone"""
    node, other = job.nodes
    impairment = node.impair(Impairment(delay_s=0.03), Traffic("egress"))
    with undone(impairment.heal):
        assert min(node.send_packets(other, PACKETS, 0.002, wait_s=WAIT_S).delays_s) >= 0.03
        assert min(node.send_packets(other, PACKETS, 0.002, back=True, wait_s=WAIT_S).delays_s) < 0.03
        fullest(node, other, 20e6, 0.6)
    assert min(node.send_packets(other, PACKETS, 0.002, wait_s=WAIT_S).delays_s) < 0.03


@check(Verb.NET_LOSS)
def packets_are_lost(job: Job) -> None:
    """packets received of 300, against the number counted as lost"""
    node, other = job.nodes
    impairment = node.impair(Impairment(loss_percent=30, seed=7), Traffic("egress", (other,)))
    with undone(impairment.heal):
        found = node.send_packets(other, 300, 0.001, wait_s=3.0)
        lost, counted = 300 - found.received, impairment.counts()["lost"]
        assert 40 < lost < 150 and 0 <= counted - lost <= 5, (lost, counted)  # nodes also look for their neighbours
    assert received(node, other) == PACKETS


def _silences(job: Job, disturb: Callable[[], Disturbance]) -> None:
    node, other = job.nodes
    assert received(node, other) == received(node, other, back=True) == PACKETS
    disturbance = disturb()
    with undone(disturbance.heal):
        assert received(node, other) == received(node, other, back=True) == 0
        disturbance.heal()
    # A link that comes up again first has to learn who its neighbours are.
    until(lambda: received(node, other) == received(node, other, back=True) == PACKETS, "all packets")


@check(Verb.NET_LINK)
def link_goes_down(job: Job) -> None:
    """packets received of 40, both directions"""
    _silences(job, job.nodes[0].unplug)


@check(Verb.NET_PARTITION)
def traffic_is_cut(job: Job) -> None:
    """packets received of 40, from those meant and from those spared"""
    node, other = job.nodes
    _silences(job, lambda: node.cut(Traffic("both", (other,))))
    if not job.place.control_is_apart:
        return
    cut = node.cut(Traffic("egress", "control"))
    with undone(cut.heal):
        assert (received(node, None), received(node, other)) == (0, PACKETS)
    assert received(node, None) == PACKETS


@check(Verb.NET_RESET)
def connections_are_reset(job: Job) -> None:
    """connections of the node's processes from before, which are gone; its processes live, and make new ones"""
    other, node = job.nodes

    def to_other() -> set[int]:
        return {each.cookie for each in node.connections(node.pids()).each if each.remote == other.address}

    before, pids = until(to_other, "a connection to the other node"), node.pids()
    assert node.reset_connections(pids) >= 1
    assert not before & to_other() and node.pids() == pids
    job.wait_steps(node, 2)
    until(to_other, "a new connection")


@check(Verb.CPU)
def node_runs_in_turns(job: Job) -> None:
    """share of the time in which the node was kept from running"""
    node = job.nodes[0]
    node.throttle(0.3)
    with undone(lambda: node.throttle(None)):
        assert 0 < shares(node)[1] < 1
    assert shares(node, 0.5)[1] == 0
    job.wait_steps(node, 2)


@check(Verb.CPU_QUOTA)
def quota_is_kept(job: Job) -> None:
    """CPU time of the node's processes, and the time for which the kernel held them back"""
    node = job.nodes[0]
    node.limit_cpu(0.1)
    with undone(lambda: node.limit_cpu(None)):
        until(lambda: shares(node)[1] > 0, "a moment in which the kernel holds it back")
        assert shares(node)[0] < 0.25
    job.wait_steps(node, 2)
    assert shares(node, 0.5)[1] == 0


def _memory_runs_out(job: Job, keeper: str) -> None:
    node = job.nodes[0]
    assert node.fill_memory(24 * MIB, spare=False) == 24 * MIB
    before = node.memory_use()
    assert node.limit_memory(before.used_bytes + 24 * MIB, keeper) == keeper
    with undone(lambda: node.limit_memory(None)):
        assert node.fill_memory(240 * MIB, spare=False) < 240 * MIB
        assert node.memory_use().kills == before.kills + 1
    assert node.fill_memory(60 * MIB, spare=False) == 60 * MIB
    job.wait_steps(node, 2)


@check(Verb.MEMORY)
def watchdog_kills(job: Job) -> None:
    """bytes a stranger gets before it is killed for them, and the kills counted"""
    _memory_runs_out(job, "watchdog")


@check(Verb.MEMORY_KERNEL)
def kernel_kills(job: Job) -> None:
    """bytes a stranger gets before the kernel kills it for them, and the kills counted"""
    _memory_runs_out(job, "kernel")


@check(Verb.FILES)
def files_are_shared(job: Job) -> None:
    """what the harness writes into a file of the run the worker of every node writes into another, which we read"""
    question = job.run_dir / "question"
    question.with_suffix(".new").write_text("who is there?")
    question.with_suffix(".new").rename(question)
    for node in job.nodes:
        answer = job.run_dir / "answers" / node.name / "answer"
        until(lambda file=answer: file.exists() and file.read_text() == "who is there?", f"an answer of {node.name}")  # type: ignore[misc]


@check(Verb.HOST)
def nodes_share_our_host(job: Job) -> None:
    """processes of each node, as this machine's own kernel lists them"""
    here = processes_of(job.run_id)
    assert all(any(f" of {node.name}.{node.incarnation}: " in each for each in here) for node in job.nodes), here


@check(Verb.STORAGE)
def storage_fails(job: Job) -> None:
    """errors that the node's worker gets, against the number counted; threads in state D; the other node saves on"""
    node, other = job.nodes
    rule = StorageRule(operations=("write",), error="ENOSPC", after_bytes=8192)
    disturbance = node.disturb_storage(STORE, rule)
    with undone(disturbance.heal):
        errors = until(lambda: job.events(node, "checkpoint.failed"), "a failed save")
        assert "No space left" in errors[0]["error"] and disturbance.counts()["failed"] >= 1
        saved = len(job.events(other, "checkpoint.committed"))
        until(lambda: len(job.events(other, "checkpoint.committed")) > saved, "a save on the other node")
        assert job.events(other, "checkpoint.failed") == []
        assert [each.try_storage(STORE, rule).refused for each in job.nodes] == [1, 0]
    assert [each.try_storage(STORE, rule).refused for each in job.nodes] == [0, 0]
    disturbance = node.disturb_storage(STORE, StorageRule(operations=("write",), hang=True))
    with undone(disturbance.heal):
        until(lambda: disturbance.counts()["longest_ns"] > 3e8, "a write that waits")
        counts = disturbance.counts()
        assert (counts["unanswered"], counts["uninterruptible"]) == (1, 1)
    saved = len(job.events(node, "checkpoint.committed"))
    until(lambda: len(job.events(node, "checkpoint.committed")) > saved, "a save after healing")


@check(Verb.CLOCK)
def clock_is_off(job: Job) -> None:
    """wall time in the events of the node's worker, against ours"""
    node, other = job.nodes

    def ahead_s(one: Node) -> float:
        event = job.events(one, "step")[-1]
        return float(event["wall_ns"] - event["mono_ns"] - (time.time_ns() - time.monotonic_ns())) / 1e9

    node.skew_clock(7200.0)
    with undone(lambda: node.skew_clock(0.0)):
        until(lambda: abs(ahead_s(node) - 7200) < 60, "the other time")
        assert abs(ahead_s(other)) < 60
    until(lambda: abs(ahead_s(node)) < 60, "our time")


@check(Verb.GPU)
def gpu_is_sick(job: Job) -> None:
    """what NVIDIA's library answers in the environment of the node's worker, and of the other node's"""
    node, other = job.nodes

    def told(one: Node) -> dict[str, object]:
        until(lambda: bool(one.gpus().devices), "an answer about the GPUs")
        return one.gpus().devices[0]

    for one in job.nodes:
        one.watch_gpus(one.pids()[0])
    with undone(lambda: node.set_gpu_health(0, {})):
        assert told(node)["ecc_uncorrected"] == told(other)["ecc_uncorrected"] == 0
        node.set_gpu_health(0, {"ecc_uncorrected": 3, "xid": 48})
        until(lambda: told(node)["ecc_uncorrected"] == 3, "errors")
        until(lambda: node.gpus().xids == [[0, 48]], "the error's number")
        assert told(other)["ecc_uncorrected"] == 0 and other.gpus().xids == [], "of the other node"
    until(lambda: told(node)["ecc_uncorrected"] == 0, "a GPU without errors")
    for one in job.nodes:
        assert one.watch_gpus(None) is None


@check(Verb.CONTROL)
def control_comes_back(job: Job) -> None:
    """the end of the control command as told by the engine, and what it says when it starts again at the same address"""
    assert job.log("control").count("up") == 1
    job.cluster.kill_control()
    until(lambda: [end for end in job.cluster.exits() if end.node == "control" and end.code == -9], "its end")
    with pytest.raises(NodeGone):
        job.cluster.kill_control()
    job.cluster.restart_control()
    lines = until(lambda: len(found := job.log("control").splitlines()) == 2 and found, "its second start")
    assert lines[0] == lines[1]


@check(Verb.COMMAND)
def another_command_runs(job: Job) -> None:
    """what a node that comes later prints, and that the others go on as they were"""
    node, other = job.nodes
    before = other.pids()
    job.cluster.change_command(
        ("{python}", "-S", "-c", "import os; print('changed to', os.environ['WORD'])"), {"WORD": "b"}
    )
    node.kill()
    fresh = job.cluster.replace(node)
    until(lambda: "changed to b" in job.log(f"{fresh.name}.{fresh.incarnation}"), "the new command")
    assert other.pids() == before


def environment(run_dir: pathlib.Path, verbs: Collection[Verb]) -> dict[str, str]:
    """What processes must be started with, so that these verbs act on them."""
    clock = skew.prepare(run_dir) if Verb.CLOCK in verbs else {}
    return clock | (gpu_health.prepare(run_dir) if Verb.GPU in verbs else {})
