"""`chaos gameday --attach docker:…` on a torchrun of two containers that this test starts by hand."""

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterator

import machine
import pytest
from backends.attached_days import TRAINER, chaos, told
from waiting import HANG_S, until

from harness.attach import docker as attached
from harness.backends.docker.engine import Engine
from harness.backends.docker.request import IMAGE
from harness.errors import BackendError, UsageError

pytestmark = pytest.mark.slow  # a real engine and a real job

SUBNETS = [f"10.79.{third}.0/24" for third in range(256)]  # a container gets its old address only in one of our choice
LABEL = f"test-attached={os.getpid()}"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    machine.need_docker()
    found = Engine()
    yield found
    found.close()


Start = Callable[..., list[str]]


def create_network(engine: Engine, name: str) -> None:
    """In the first subnet that nobody has, as an interrupted test may have left its own."""
    for subnet in SUBNETS:
        pool = {"Config": [{"Subnet": subnet}]}
        try:
            engine.create_network({"Name": name, "Driver": "bridge", "IPAM": pool, "Labels": {"test": "attached"}})
        except BackendError as error:
            if "overlap" not in str(error):
                raise
        else:
            return
    raise AssertionError(f"no subnet of {SUBNETS[0]} to {SUBNETS[-1]} is free")


@pytest.fixture
def start(engine: Engine) -> Iterator[Start]:
    """Starts a job by hand; at the end nothing of it is left."""
    network = f"test-attached-{os.getpid()}"
    create_network(engine, network)
    ending = contextlib.ExitStack()
    ending.callback(engine.api.remove_network, network)
    made: list[str] = []

    def run(allow: str | None = "true", nodes: int = 2, **host: str) -> list[str]:
        key, _, value = LABEL.partition("=")
        labels = {key: value} | ({"chaos.allow": allow} if allow else {})
        for index in range(nodes):
            name = f"{network}-{index}"
            command = ["python3", "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"]
            command += [f"--node-rank={index}", f"--master-addr={network}-0", "--master-port=29511"]
            wanted = {
                "Image": IMAGE,
                "Entrypoint": [],
                "Cmd": [*command, "/trainer.py", "/tmp/stop"],
                "Env": ["GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1"],
                "Labels": labels,
                "HostConfig": {"NetworkMode": network, "Init": True, "Binds": [f"{TRAINER}:/trainer.py:ro"], **host},
            }
            made.append(engine.create(name, wanted))
            ending.callback(engine.api.remove_container, made[-1], force=True, v=True)
            engine.api.start(made[-1])
        return made

    with ending:
        yield run


def ended(engine: Engine, made: list[str]) -> list[int]:
    """Asks the job to end, and returns how its containers did."""
    engine.api.exec_start(engine.api.exec_create(made[0], ["touch", "/tmp/stop"])["Id"])
    return [int(engine.api.wait(each, timeout=HANG_S)["StatusCode"]) for each in made]


def test_a_struck_container_heals_and_the_job_ends_with_0(start: Start, engine: Engine, tmp_path: pathlib.Path) -> None:
    made = start()
    command = chaos(f"docker:{LABEL}", tmp_path, "pause stop disconnect", "3s")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = told(tmp_path)
    assert report["verdict"] == "pass" and "loss continuity" in report["not_judged"]
    assert [list(each["acted"].values()) for each in report["records"] if each["what"] == "struck"] == [[True]] * 3
    assert ended(engine, made) == [0, 0]


def test_a_killed_harness_leaves_nobody_paused(start: Start, engine: Engine, tmp_path: pathlib.Path) -> None:
    made = start()
    going = subprocess.Popen(
        chaos(f"docker:{LABEL}", tmp_path, "pause", "60s"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with contextlib.ExitStack() as ending:
        ending.callback(going.wait)
        ending.callback(going.kill)
        until(lambda: any(engine.inspect(each)["State"]["Paused"] for each in made), "a paused container")
        going.send_signal(signal.SIGKILL)
    until(lambda: not any(engine.inspect(each)["State"]["Paused"] for each in made), "all containers to go on")
    assert ended(engine, made) == [0, 0]


@pytest.mark.parametrize("allow", [None, "yes"])
def test_a_job_whose_owner_did_not_allow_it_is_refused(allow: str | None, start: Start, engine: Engine) -> None:
    start(allow, nodes=1)
    with pytest.raises(UsageError, match="its owner must allow this first"):
        attached.attach(LABEL)


def test_a_container_that_sees_the_processes_of_the_host_is_not_stopped(start: Start, engine: Engine) -> None:
    """A signal to everything it sees would stop this machine."""
    start("kill", nodes=1, PidMode="host")
    job = attached.attach(LABEL)
    with pytest.raises(UsageError, match="PidMode host"):
        job.undo_of("stop", job.nodes[0])
