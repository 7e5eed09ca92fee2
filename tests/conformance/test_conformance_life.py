"""A run from its launch to its end, on every backend: what it promises about nodes, exits, logs, and what stays."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
from conformance.places import CONTROL, ROOT, OpenJob, Place, fuse_mounts_below, listeners_of, processes_of, worker
from event_files import read_log
from waiting import until

from harness.backends.contract import Verb
from harness.errors import NodeGone, UsageError
from harness.node.emitter import clock_id
from harness.run.undo import heal


def test_a_job_is_launched_and_ends_and_its_exit_codes_are_told(open_here: OpenJob) -> None:
    job = open_here(worker(steps=8, code=3), nodes=2, control=CONTROL)
    assert job.wait_exits(2) == {("node0", 1): 0, ("node1", 1): 3}
    for node in job.nodes:
        assert job.steps(node) == 8
        assert [event["code"] for event in job.events(node, "exiting")] == [3 * node.index]
        assert f"rank {node.index} says goodbye" in job.log(f"{node.name}.1")
    assert len({node.address for node in job.nodes}) == 2
    assert "control is up" in job.log("control") + job.log("control.1")
    for _ in range(2):
        job.cluster.close()


@pytest.mark.verbs(Verb.KILL, Verb.REPLACE)
def test_a_killed_node_leaves_nothing_but_its_log_and_a_replacement_joins(place: Place, open_here: OpenJob) -> None:
    job = open_here(worker(), nodes=2, control=CONTROL)
    victim, peer = job.nodes
    for node in job.nodes:
        job.wait_steps(node, 3)
    assert all(node.rdma() is not None for node in job.nodes), "looked at, though they have none"
    # Control lines and metadata endpoints are where the nodes are; without namespaces these have loopback addresses.
    assert [each for each in listeners_of(job.run_id) if place.mode != "plain" or each[4:8] != "4D7F"] == []  # 127.77
    assert len(victim.pids()) >= 2, "the worker and its child"
    if noticed := Verb.NOTICE in place.probe().verbs:
        victim.notice("ec2", 60.0)
        until(victim.notice_seen, "the notice")
    victim.kill()
    assert not victim.alive and victim.pids() == []
    assert [line for line in processes_of(job.run_id) if f"{victim.name}.1" in line] == []
    with pytest.raises(NodeGone):
        victim.signal(signal.SIGTERM)
    with pytest.raises(UsageError, match="still there"):
        job.cluster.replace(peer)
    seen = job.steps(victim)
    assert seen >= 3, "what a dead node wrote is not lost"
    assert job.wait_exits(1)[victim.name, 1] < 0
    fresh = job.cluster.replace(victim)
    until(lambda: fresh.alive, "the replacement")
    assert (fresh.name, fresh.index, fresh.incarnation) == (victim.name, victim.index, 2)
    assert job.nodes[victim.index] is fresh
    job.wait_steps(fresh, 3)
    assert len(job.events(victim, "step", incarnation=1)) == seen, "nobody writes in the name of the dead"
    assert not noticed or (fresh.notice_seen(), job.events(fresh, "notice")) == (0, [])
    with pytest.raises(UsageError, match="replaced already"):
        job.cluster.replace(victim)


def test_two_runs_side_by_side_do_not_touch_each_other(place: Place, open_here: OpenJob) -> None:
    one, two = open_here(worker()), open_here(worker())
    for job in (one, two):
        job.wait_steps(job.nodes[0])
    before = two.nodes[0].pids()
    one.nodes[0].signal(signal.SIGKILL)
    one.cluster.close()
    until(lambda: not place.left_of(one.run_id), "the end of the first run")
    assert two.nodes[0].alive and two.nodes[0].pids() == before
    two.wait_steps(two.nodes[0], 5)


KILLED_HARNESS = textwrap.dedent("""
    import os, pathlib, signal, sys
    sys.path[:0] = sys.argv[1:2]
    from waiting import until
    from conformance.places import PLACES, STORE, fuse_mounts_below, open_job, worker
    from harness.node.types import StorageRule
    from harness.backends.contract import Verb
    from harness.log.journal import Journal
    run_dir, run_id = pathlib.Path(sys.argv[2]), sys.argv[4]
    place = next(place for place in PLACES if place.name == sys.argv[3])
    journal = Journal(run_dir)
    journal.record(f"backends.{place.backend_name}", {"run_id": run_id, "environment": place.backend.whereabouts()})
    mounts = (STORE,) if Verb.STORAGE in place.probe().verbs else ()
    job = open_job(place, run_dir, run_id, worker(store=f"{{run_dir}}/{STORE}" if mounts else ""), nodes=2, mounts=mounts)
    for node in job.nodes:
        job.wait_steps(node)
    if mounts:
        assert fuse_mounts_below(run_dir), "nodes see their storage through a file system of ours"
        job.nodes[0].disturb_storage(STORE, StorageRule(operations=("write",), power="prefix"))
        hung = job.nodes[1].disturb_storage(STORE, StorageRule(operations=("write",), hang=True))
        until(lambda: hung.counts()["unanswered"], "a write that waits")
    os.kill(os.getpid(), signal.SIGKILL)
""")


def test_after_sigkill_of_the_harness_heal_leaves_nothing(place: Place, tmp_path: pathlib.Path) -> None:
    run_dir, run_id = tmp_path / "reports" / "killed", f"conform-{os.getpid()}-killed"
    run_dir.mkdir(parents=True)
    arguments = [sys.executable, "-c", KILLED_HARNESS, str(ROOT / "tests"), str(run_dir), place.name, run_id]
    done = subprocess.run(arguments, check=False)
    healed, failed = heal(run_dir.parent)
    assert done.returncode == -signal.SIGKILL, "it was to die in the middle of a run"
    assert (healed, failed) == ([run_dir.name], [])
    until(lambda: not place.left_of(run_id) and not fuse_mounts_below(run_dir), "the end of everything")
    assert heal(run_dir.parent) == ([], []), "nothing is left to do"


def test_clocks_of_other_hosts_are_compared(place: Place, open_here: OpenJob) -> None:
    """The places here are all on one machine, so the truth is known: no offset at all."""
    job = open_here(worker(steps=100), nodes=2)
    job.wait_exits(2)
    headers = {log.header["host"]: log.header for log in read_log(job.run_dir / "events") if "host" in log.header}
    readings = list(job.cluster.clocks())
    if place.backend_name in ("docker", "slurm"):  # the others compare only what another kernel counts
        until(lambda: len(readings) >= 2 or readings.extend(job.cluster.clocks()), "a reading of each clock")
    for reading in readings:
        assert reading.host in headers, "by this name the reader finds the events of the host"
        assert headers[reading.host]["clock"] != clock_id() or abs(reading.offset_ns) <= reading.uncertainty_ns
        assert 0 < reading.uncertainty_ns < 10**9
    foreign = {host for host, header in headers.items() if header["clock"] != clock_id()}
    assert foreign <= {reading.host for reading in readings}, "a clock that is not ours must be compared"
