"""The docker backend against a real engine. Where there is none the tests are skipped."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.backends.agent.types import Impairment
from harness.backends.contract import Traffic, Workload
from harness.backends.docker import backend
from harness.backends.docker.engine import Engine
from harness.errors import BackendError, NodeGone, UsageError

WAIT_S = 60.0
LOOP = ("sh", "-c", "trap 'echo heard' TERM; echo started; while :; do sleep 0.1; done")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    capability = backend.BACKEND.probe()
    if not capability.available:
        pytest.skip(capability.summary)
    found = Engine()
    yield found
    found.close()


@pytest.fixture
def launch(
    engine: Engine, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., backend.DockerCluster]]:
    clusters = []

    def open_cluster(*command: str, nodes: int = 1, name: str = "", **more: Any) -> backend.DockerCluster:
        run_id = f"test-{request.node.name[:40]}-{os.getpid()}{name}".replace("[", "-").replace("]", "")
        run_dir = tmp_path / (name or "run")
        run_dir.mkdir()
        cluster = backend.BACKEND.open(Workload(command, nodes, 1, **more), run_dir, run_id)
        clusters.append(cluster)
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:g} s"
        time.sleep(0.02)
    return found


def log_of(cluster: backend.DockerCluster, node: str) -> str:
    return (cluster._run_dir / "logs" / f"{node}.log").read_text()


def things(engine: Engine, run_id: str) -> list[str]:
    label = {"label": f"chaos.run_id={run_id}"}
    found = [entry["Id"] for entry in engine.api.containers(all=True, filters=label)]
    found += [entry["Id"] for entry in engine.api.networks(filters=label)]
    return found + [entry["Name"] for entry in engine.api.volumes(filters=label)["Volumes"] or ()]


def test_commands_run_with_their_places_filled_in_and_exits_are_told(launch: Any, engine: Engine) -> None:
    script = "echo {index} {incarnation} {address} {control}; hostname; exit $(({index} * 3))"
    cluster = launch("sh", "-c", script, nodes=2, control=("sh", "-c", "echo {address}; exit 7"))
    cluster.start()
    exits: list[Any] = []
    until(lambda: exits.extend(cluster.exits()) or len(exits) == 3, "three exits")
    assert {(end.node, end.incarnation, end.code) for end in exits} == {
        ("node0", 1, 0),
        ("node1", 1, 3),
        ("control", 1, 7),
    }
    control = log_of(cluster, "control").strip()
    for node in cluster.nodes:
        assert log_of(cluster, node.key).split() == [str(node.index), "1", node.address, control, node.name]
        assert node.alive, "a node outlives its command"
    cluster.close()
    assert things(engine, cluster._place.run_id) == []


def test_nothing_of_the_harness_environment_reaches_a_container(
    launch: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "hush-hush")
    cluster = launch("sh", "-c", "env; cat /proc/1/environ", env={"WANTED": "here"})
    cluster.start()
    until(cluster.exits, "the exit")
    log = log_of(cluster, "node0.1")
    assert "WANTED=here" in log and "hush-hush" not in log
    assert "hush-hush" not in json.dumps(engine.api.inspect_container(cluster.nodes[0].container))
    names = {"CHAOS_EVENTS", "CHAOS_NODE=node0", "CHAOS_INCARNATION=1", "CHAOS_RUN_ID", "GLOO_SOCKET_IFNAME=eth0"}
    assert all(name in log for name in names)


def test_files_written_on_a_node_are_the_callers_to_read(launch: Any) -> None:
    cluster = launch("sh", "-c", "id -u; mkdir {run_dir}/made && echo deep > {run_dir}/made/file; echo x > /scratch/y")
    cluster.start()
    assert until(cluster.exits, "the exit")[0].code == 0, log_of(cluster, "node0.1")
    assert log_of(cluster, "node0.1").strip() != "0", "nodes must not run as root"
    assert (cluster._run_dir / "made" / "file").read_text() == "deep\n"


def test_a_signal_reaches_one_process_or_all_but_the_init(launch: Any) -> None:
    cluster = launch(*LOOP)
    cluster.start()
    node = cluster.nodes[0]
    until(lambda: "started" in log_of(cluster, node.key), "the command")
    assert node.signal(signal.SIGTERM) >= 1
    until(lambda: "heard" in log_of(cluster, node.key), "the signal")
    shell = min(node.pids())
    assert 1 not in node.pids()
    assert node.signal(signal.SIGKILL, shell) == 1
    assert until(cluster.exits, "the exit")[0].code == -signal.SIGKILL
    assert shell not in node.pids() and node.alive
    assert node.signal(signal.SIGKILL, shell) == 0
    with pytest.raises(UsageError, match="above 1"):
        node.signal(signal.SIGKILL, 1)


def test_a_notice_is_read_on_the_node_and_only_there(launch: Any) -> None:
    read = (
        "import os, time, urllib.request as u\n"
        "base = os.environ['AWS_EC2_METADATA_SERVICE_ENDPOINT']\n"
        "token = u.urlopen(u.Request(base + '/latest/api/token', method='PUT',"
        " headers={'X-aws-ec2-metadata-token-ttl-seconds': '60'})).read().decode()\n"
        "while True:\n"
        "    try:\n"
        "        ask = u.Request(base + '/latest/meta-data/spot/instance-action', headers={'X-aws-ec2-metadata-token': token})\n"
        "        print(u.urlopen(ask).read().decode(), flush=True)\n"
        "        break\n"
        "    except u.HTTPError as error:\n"
        "        print(error.code, flush=True)\n"
        "        time.sleep(0.05)\n"
    )
    cluster = launch("python3", "-c", read.replace("u.HTTPError", "__import__('urllib.error').error.HTTPError"))
    cluster.start()
    node = cluster.nodes[0]
    until(lambda: "404" in log_of(cluster, node.key), "an answer without a notice")
    assert node.notice_seen() == 0
    node.notice("ec2", 30.0)
    assert until(cluster.exits, "the exit")[0].code == 0
    assert '"action": "terminate"' in log_of(cluster, node.key)
    assert node.notice_seen() == 1
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{node.address}/latest/meta-data/", timeout=0.5)


def test_an_eviction_tells_everything_on_the_node_and_then_takes_it(launch: Any) -> None:
    cluster = launch(*LOOP)
    cluster.start()
    node = cluster.nodes[0]
    until(lambda: "started" in log_of(cluster, node.key), "the command")
    asked = time.monotonic()
    node.evict(1.5)
    until(lambda: "heard" in log_of(cluster, node.key), "the notice")
    assert node.alive
    until(lambda: not node.alive, "the end of the node")
    assert time.monotonic() - asked >= 1.5, "the notice time was cut short"
    assert [end.code for end in cluster.exits()] == [-9]


def test_what_cannot_start_leaves_nothing(
    engine: Engine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"test-broken-{os.getpid()}"
    monkeypatch.setattr(backend.request, "SCRATCH", "not-absolute")
    with pytest.raises(BackendError, match="creating container"):
        backend.BACKEND.open(Workload(("true",), 1, 1), tmp_path, run_id)
    assert things(engine, run_id) == []


def test_an_image_of_other_source_is_refused(
    engine: Engine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "source_digest", lambda: "another")
    capability = backend.DockerBackend().probe()
    assert not capability.available and "make image" in capability.summary


@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_a_delay_costs_time_and_not_the_path(launch: Any, direction: Any) -> None:
    cluster = launch("sleep", "600", nodes=2, control=("sleep", "600"))
    node, other = cluster.nodes
    back = direction == "ingress"
    impairment = node.impair(Impairment(delay_s=0.05), Traffic(direction))
    for peer in (other, None):
        assert min(node.send_packets(peer, 20, 0.002, back, wait_s=1.0).delays_s) >= 0.05
        assert min(node.send_packets(peer, 20, 0.002, not back).delays_s) < 0.05
    assert node.fill_path(other, 1.0, back) > 20e6, "held back before the wire, it would be 1 Mbit/s"
    assert impairment.counts()["packets"] >= 40
    other.kill()
    fresh = cluster.replace(other)
    assert min(node.send_packets(fresh, 20, 0.002, back, wait_s=1.0).delays_s) >= 0.05
    impairment.heal()
    assert min(node.send_packets(fresh, 20, 0.002, back).delays_s) < 0.05


@pytest.mark.parametrize("keeper", ["kernel", "watchdog"])
def test_the_doomed_process_dies_when_memory_runs_out(launch: Any, keeper: str) -> None:
    cluster = launch(
        "python3", "-c", "import time; kept = b'x' * (30 << 20); print('held', flush=True); time.sleep(600)"
    )
    cluster.start()
    node = cluster.nodes[0]
    until(lambda: "held" in log_of(cluster, node.key), "the command")
    assert node.memory_use().used_bytes > 30 << 20
    assert node.limit_memory(96 << 20, keeper) == keeper
    node.doom(node.pids()[0])
    node.fill_memory(200 << 20, spare=True)
    assert until(cluster.exits, "the exit")[0].code == -signal.SIGKILL
    assert node.memory_use().kills >= 1 and node.alive
    node.limit_memory(None)
    assert node.fill_memory(150 << 20, spare=False) == 150 << 20


def test_the_control_command_dies_and_comes_back_at_the_same_address(launch: Any) -> None:
    cluster = launch("sleep", "600", control=("sh", "-c", "echo at {address}; sleep 600"))
    cluster.start()
    until(lambda: "at" in log_of(cluster, "control"), "the control command")
    cluster.kill_control()
    assert [(end.node, end.incarnation, end.code) for end in cluster.exits()] == [("control", 1, -9)]
    with pytest.raises(NodeGone):
        cluster.kill_control()
    cluster.restart_control()
    lines = until(lambda: len(found := log_of(cluster, "control").split("\n")) > 2 and found, "the second start")
    assert lines[0] == lines[1]
    assert cluster.nodes[0].alive
