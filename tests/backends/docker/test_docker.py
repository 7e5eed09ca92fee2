"""The docker backend against a real engine. Where there is none the tests are skipped."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import machine
import pytest
from conformance.places import docker_things
from event_files import read_log
from waiting import until

from harness.backends import delivery
from harness.backends.contract import Launch, Traffic
from harness.backends.docker import backend
from harness.backends.docker import request as request_of_docker
from harness.backends.docker.engine import Engine
from harness.errors import BackendError, CannotRunError, EventLogError, FaultError, UsageError
from harness.log import untrusted_files
from harness.node import owner_names
from harness.node.types import Impairment

ROOT = pathlib.Path(__file__).resolve().parents[3]
WAIT_S = 30.0  # for the last packets; there is no wait where all have come


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    machine.need_docker()
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
        cluster = backend.BACKEND.open(Launch(command, nodes, 1, **more), run_dir, run_id)
        clusters.append(cluster)
        return cluster

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def log_of(cluster: backend.DockerCluster, node: str) -> str:
    return (cluster._run_dir / "logs" / f"{node}.log").read_text()


def test_commands_run_with_their_places_filled_in(launch: Any) -> None:
    """A notice of a node is not read from elsewhere: the conformance suite reads it on the node."""
    script = "echo {index} {incarnation} {address} {control}; hostname; exit $(({index} * 3))"
    cluster = launch("sh", "-c", script, nodes=2, control=("sh", "-c", "echo {address}; exit 7"))
    cluster.start()
    exits: list[Any] = []
    until(lambda: exits.extend(cluster.exits()) or len(exits) == 3, "three exits")
    assert {(end.node, end.code) for end in exits} == {("node0", 0), ("node1", 3), ("control", 7)}
    control, node = log_of(cluster, "control").strip(), cluster.nodes[0]
    for each in cluster.nodes:
        assert log_of(cluster, each.key).split() == [str(each.index), "1", each.address, control, each.name]
    node.notice("ec2", 30.0)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{node.address}/latest/meta-data/", timeout=0.5)
    assert node.notice_seen() == 0
    cluster.close()
    assert docker_things(cluster._place.run_id) == []


NAMES = """
import socket, time
while True:
    print(socket.gethostbyname("node0"), socket.gethostbyname("node1"), socket.gethostbyname("control"), flush=True)
    time.sleep(0.1)
"""


def test_nodes_know_each_other_by_name_also_after_one_was_replaced(launch: Any) -> None:
    cluster = launch("python3", "-c", NAMES, nodes=2, control=("sleep", "60"))
    cluster.start()
    first, second = cluster.nodes

    def named(*nodes: Any) -> str:
        return " ".join([*(node.address for node in nodes), cluster._control.address])

    until(lambda: named(first, second) in log_of(cluster, "node0.1"), "the names")
    second.kill()
    fresh = cluster.replace(second)
    until(lambda: named(first, fresh) in log_of(cluster, "node1.2"), "the name of the replacement")
    until(lambda: named(first, fresh) in log_of(cluster, "node0.1").splitlines()[-1], "the same at its peer")


def test_nothing_of_the_harness_environment_reaches_a_container_whose_files_are_the_callers_to_read(
    launch: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "hush-hush")
    script = "env; cat /proc/1/environ; mkdir -p {run_dir}/made && id -u > {run_dir}/made/file; echo x > /scratch/y"
    cluster = launch("sh", "-c", script, env={"WANTED": "here"})
    cluster.start()
    log = until(cluster.exits, "the exit") and log_of(cluster, "node0.1")
    assert "WANTED=here" in log and "hush-hush" not in log
    assert "hush-hush" not in json.dumps(engine.api.inspect_container(cluster.nodes[0].container))
    names = {"CHAOS_EVENTS", "CHAOS_NODE=node0", "CHAOS_INCARNATION=1", "CHAOS_RUN_ID", "GLOO_SOCKET_IFNAME=eth0"}
    assert all(name in log for name in names)
    assert (cluster._run_dir / "made" / "file").read_text() not in ("0\n", ""), "nodes must not run as root"


def test_what_cannot_start_leaves_nothing(
    engine: Engine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"test-broken-{os.getpid()}"
    monkeypatch.setattr(request_of_docker, "SCRATCH", "not-absolute")
    with pytest.raises(BackendError, match="creating container"):
        backend.BACKEND.open(Launch(("true",), 1, 1), tmp_path, run_id)
    assert docker_things(run_id) == []


def test_an_image_with_another_reference_trainer_is_refused(
    engine: Engine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "trainer_digest", lambda: "another")
    assert backend.DockerBackend().probe().available, "a trainer of one's own needs nothing of ours in its image"
    workload = Launch(("{python}", "-m", "reference_trainer.launch"), 1, 1)
    with pytest.raises(CannotRunError, match="make image"):
        backend.BACKEND.open(workload, tmp_path, f"test-other-{os.getpid()}")
    monkeypatch.setenv(backend.GPUS_ENV, "yes")
    with pytest.raises(UsageError, match="'yes'"):
        backend.BACKEND.open(Launch(("true",), 1, 1), tmp_path, f"test-other-{os.getpid()}")


def test_an_image_needs_python_and_nothing_of_ours(
    launch: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plain base has never heard of the harness; a trainer there imports the emitter all the same."""
    if not engine.api.images("chaos-base"):
        pytest.skip("no image chaos-base: run 'make image'")
    monkeypatch.setenv(backend.IMAGE_ENV, "chaos-base")
    code = "from harness.events import Emitter; Emitter.open('trainer', rank=0)('started'); print(Emitter.__module__)"
    cluster = launch("python3", "-c", code)
    cluster.start()
    assert until(cluster.exits, "the exit")[0].code == 0, log_of(cluster, "node0.1")
    [log] = read_log(cluster._run_dir / "events")
    assert log.path.parent.name == "node0" and log.events[0]["event"] == "started"


# What a container may do to the host


KEPT = ("undo.jsonl", "plan.json", "holds.json", "holds/f.armed", "events/harness.jsonl", "logs/reverter.log")
FORGE = """
import os, pathlib, shutil, sys
run = pathlib.Path(sys.argv[1])
forged = []
def attempt(name, act):
    try:
        act()
        forged.append(name)
    except OSError:
        pass
for name in ("undo.jsonl", "plan.json", "holds.json", "holds/f.armed", "events/harness.jsonl", "logs/reverter.log",
             "delivered.zip", "hosts", "resolv.conf", "logs/node0.2.log", "logs/new", "events/new.jsonl", "events/node1/w.jsonl",
             "answers/node1/claim", "holds/f.released", "new"):
    attempt(f"write {name}", lambda: (run / name).open("a").write("forged"))
    attempt(f"remove {name}", lambda: (run / name).unlink())
    attempt(f"replace {name}", lambda: os.rename(run / "events" / "node0" / "mine", run / name))
    attempt(f"own {name}", lambda: os.chmod(run / name, 0o777))
for name in ("events", "logs", "holds", "events/node0", "checkpoints"):
    attempt(f"move {name}", lambda: os.rename(run / name, run / "aside"))
attempt("remove holds", lambda: shutil.rmtree(run / "holds"))
for number in (0, 1, 2):
    attempt(f"line {number}", lambda: open(f"/proc/1/fd/{number}", "wb"))
print("forged:", forged)
for name in ("events/node0/mine.jsonl", "answers/node0/claim", "checkpoints/step", "logs/node0.1.log"):
    (run / name).open("a").write("mine")
"""


def test_a_container_cannot_forge_the_journal_nor_its_verdict(launch: Any) -> None:
    cluster = launch("python3", "-c", FORGE, "{run_dir}", nodes=2)
    run_dir = cluster._run_dir
    for name in KEPT:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text("ours")
    cluster.start()
    until(lambda: len(cluster.exits()) or "forged:" in log_of(cluster, "node0.1"), "the attack")
    until(lambda: (run_dir / "answers" / "node0" / "claim").exists(), "what is the node's own can be written")
    assert "forged: []" in log_of(cluster, "node0.1")
    assert {(run_dir / name).read_text() for name in KEPT} == {"ours"}
    assert all((run_dir / name).stat().st_uid == os.getuid() for name in KEPT)
    assert not (run_dir / "undo.jsonl").stat().st_mode & 0o022
    assert sorted(os.listdir(run_dir / "events" / "node0")) == ["mine.jsonl"]


PLANT = """
import os, pathlib, sys
run, outside = pathlib.Path(sys.argv[1]), sys.argv[2]
planted = 0
for name in ("logs/node0.1.log", "logs/node0.2.log", "logs/node0.2.init.log", "logs/node0.2.storage.log",
             "events/node0", "events/harness.jsonl", "checkpoints", "report.json", "logs"):
    try:
        if os.path.lexists(run / name):
            os.rename(run / name, str(run / name) + ".aside")
        os.symlink(outside, run / name)
        planted += 1
    except OSError:
        pass
for name in ("checkpoints/link", "events/node0/link.jsonl", "answers/node0/f.act.strike-0-0"):
    os.symlink(outside, run / name)
print("planted", planted, flush=True)
sys.exit(1)
"""


def test_links_that_a_container_plants_are_not_followed(launch: Any, tmp_path: pathlib.Path) -> None:
    """Neither written through by root, nor read into a verdict."""
    outside = tmp_path / "only-for-root"
    outside.write_text("RuntimeError: the secret\n")
    outside.chmod(0o600)
    cluster = launch("python3", "-c", PLANT, "{run_dir}", str(outside))
    run_dir = cluster._run_dir
    cluster.start()
    assert until(cluster.exits, "the exit")[0].code == 1
    assert "planted 0" in log_of(cluster, "node0.1")
    node = cluster.nodes[0]
    node.kill()
    cluster.replace(node)
    until(cluster.exits, "the exit of the replacement")
    cluster.close()
    assert outside.read_text() == "RuntimeError: the secret\n"
    for log in ("node0.1", "node0.2"):
        assert "secret" not in untrusted_files.tail(run_dir, f"logs/{log}.log")
    with pytest.raises(FaultError, match="left alone"):
        untrusted_files.read(run_dir, "checkpoints/link")
    with pytest.raises(EventLogError, match="a symbolic link") as refused:
        read_log(run_dir / "events")
    assert "secret" not in str(refused.value)


def test_a_delay_costs_time_and_not_the_path(launch: Any) -> None:
    cluster = launch("sleep", "600", nodes=2, control=("sleep", "600"))
    node, other = cluster.nodes

    def least(peer: Any, back: bool) -> float:
        return float(min(node.send_packets(peer, 20, 0.002, back, wait_s=WAIT_S).delays_s))

    impairment = node.impair(Impairment(delay_s=0.05), Traffic("ingress"))
    for peer in (other, None):
        assert least(peer, back=False) < 0.05 <= least(peer, back=True)
    # Held back before the wire, it would be 1 Mbit/s.
    until(lambda: node.fill_path(other, 1.0, True) > 20e6, "a path as full as before")
    assert impairment.counts()["packets"] >= 40
    other.kill()
    fresh = cluster.replace(other)
    assert least(fresh, back=True) >= 0.05
    impairment.heal()
    assert least(fresh, back=True) < 0.05


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


KILLED_PROBE = """
import os
from harness.backends.docker import backend, container_probe
def killed(cluster, log):
    print(cluster._place.run_id, flush=True)
    os.kill(os.getpid(), 9)
container_probe._wait_for_time = killed
backend.BACKEND.probe()
"""


def test_what_a_killed_probe_leaves_is_swept_without_a_journal(engine: Engine) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_PROBE], cwd=ROOT, capture_output=True, text=True)
    run_id = done.stdout.strip()
    assert docker_things(run_id), done.stderr
    (found,) = backend.BACKEND.sweep(dry_run=True)
    assert run_id in found and docker_things(run_id)
    assert backend.BACKEND.sweep() == [found]
    assert docker_things(run_id) == []


def test_a_living_probe_is_left_alone(engine: Engine) -> None:
    run_id = owner_names.new_name(backend.PROBE)
    wanted = request_of_docker.network(request_of_docker.DockerRun(run_id))
    engine.create_network(wanted)
    try:
        with pytest.raises(BackendError, match=f"{wanted['Name']} already exists"):
            engine.create_network(wanted)  # what the daemon said is passed on
        backend.BACKEND.sweep()
        assert len(docker_things(run_id)) == 1
    finally:
        engine.remove_run(run_id)
