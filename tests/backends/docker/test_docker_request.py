"""What is asked of the Docker Engine, compared whole; nothing here needs an engine."""

import gc
import io
import json
import pathlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.contract import Launch
from harness.backends.docker import backend, engine, request
from harness.backends.docker.stream import AttachedStream
from harness.errors import CannotRunError, UsageError
from harness.node import boot, container_storage

TRAINING = Launch(
    ("{python}", "train.py"), nodes=2, ranks_per_node=2, env={"LR": "1"}, control=("{python}", "store.py")
)


ATTACHED = dict.fromkeys(("OpenStdin", "StdinOnce", "AttachStdin", "AttachStdout", "AttachStderr"), True)


def expected_container(node: str) -> dict[str, object]:
    labels = {"chaos.run_id": "{run_id}", "chaos.node": node, "chaos.incarnation": "1"}
    log, folders = ("control", ()) if node == "control" else (f"{node}.1", ("checkpoints",))
    return {
        "Image": "chaos-node",
        "Hostname": node,
        "User": "{user}",
        "Entrypoint": boot.command(
            "python3", "{run_dir}/delivered.zip", "harness.node.node_init", [node, "node0", "node1"]
        ),
        "WorkingDir": "/scratch",
        "Labels": labels,
        **ATTACHED,
        "HostConfig": {
            "NetworkMode": "chaos-{run_id}",
            "Mounts": [
                {"Type": "bind", "Source": "{run_dir}", "Target": "{run_dir}", "ReadOnly": True},
                *(
                    {"Type": "bind", "Source": f"{{run_dir}}/{name}", "Target": f"{{run_dir}}/{name}"}
                    for name in (f"events/{node}", f"answers/{node}", f"logs/{log}.log", *folders)
                ),
                {
                    "Type": "volume",
                    "Source": f"chaos-{{run_id}}-{node}.1",
                    "Target": "/scratch",
                    "VolumeOptions": {"Labels": labels},
                },
                {"Type": "bind", "Source": "{run_dir}/hosts", "Target": "/etc/hosts", "ReadOnly": True},
                {"Type": "bind", "Source": "{run_dir}/resolv.conf", "Target": "/etc/resolv.conf", "ReadOnly": True},
            ],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,
            "ShmSize": 2**30,
            "LogConfig": {"Type": "none"},
        },
        "NetworkingConfig": {
            "EndpointsConfig": {"chaos-{run_id}": {"IPAMConfig": {"LinkLocalIPs": ["169.254.169.254"]}}}
        },
    }


def test_the_request_as_a_whole() -> None:
    assert backend.BACKEND.render(TRAINING) == {
        "network": {
            "Name": "chaos-{run_id}",
            "Driver": "bridge",
            "Internal": True,
            "CheckDuplicate": True,
            "Labels": {"chaos.run_id": "{run_id}"},
        },
        "containers": {name: expected_container(name) for name in ("control", "node0", "node1")},
        "commands": {
            "control": ["{python}", "store.py"],
            "node0": ["{python}", "train.py"],
            "node1": ["{python}", "train.py"],
        },
        "env": {"LR": "1"},
    }


def test_rendering_knows_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    before = json.dumps(backend.BACKEND.render(TRAINING))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(backend.IMAGE_ENV, "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert json.dumps(backend.BACKEND.render(TRAINING)) == before


def test_every_rank_gets_a_gpu_of_its_own() -> None:
    asked = request.render(TRAINING, request.DockerRun(gpus=True))["containers"]
    gpus = {name: each["HostConfig"].get("DeviceRequests") for name, each in asked.items()}
    assert gpus["control"] is None
    assert "control" not in request.render(Launch(("true",), 1, 1), request.DockerRun())["containers"]
    assert [gpus[name][0]["DeviceIDs"] for name in ("node0", "node1")] == [["0", "1"], ["2", "3"]]
    assert gpus["node0"][0]["Capabilities"] == [["gpu"]]


def test_a_way_out_is_given_only_when_asked_for() -> None:
    place = request.DockerRun(egress=True)
    assert request.network(place)["Internal"] is False
    assert "/etc/resolv.conf" not in [
        mount["Target"] for mount in request.container(TRAINING, place, "node0", 1)["HostConfig"]["Mounts"]
    ]


@given(st.text(min_size=1, max_size=300))
def test_no_run_id_can_break_out_of_a_name(run_id: str) -> None:
    name = request.DockerRun(run_id=run_id).container("node0", 1)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-{}")
    assert set(name) <= allowed and len(name) < 128
    assert request.DockerRun(run_id="a/b").prefix != request.DockerRun(run_id="a b").prefix


def test_no_container_is_privileged() -> None:
    for asked in request.render(TRAINING, request.DockerRun(gpus=True, egress=True))["containers"].values():
        host = asked["HostConfig"]
        assert "Privileged" not in host and "CapAdd" not in host and host["CapDrop"] == ["ALL"]


def test_a_sidecar_may_change_one_network_and_nothing_else() -> None:
    assert request.sidecar(request.DockerRun(run_id="r"), "node0", 1, "abc") == {
        "Image": "chaos-node",
        "User": "0:0",
        "Entrypoint": boot.command("python3", "{run_dir}/delivered.zip", "harness.node.sidecar"),
        "Labels": {"chaos.run_id": "r", "chaos.node": "node0", "chaos.incarnation": "1"},
        **ATTACHED,
        "HostConfig": {
            "NetworkMode": "container:abc",
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": "{run_dir}/delivered.zip",
                    "Target": "{run_dir}/delivered.zip",
                    "ReadOnly": True,
                }
            ],
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,
            "LogConfig": {"Type": "none"},
        },
    }


def test_where_the_daemon_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv(engine.ENGINES_DIR_ENV, str(tmp_path))
    assert engine.address() == "unix:///var/run/docker.sock"
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "docker.sock").touch()
    assert engine.address() == f"unix://{tmp_path}/docker/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2376")
    assert engine.address() == "tcp://elsewhere:2376"


def test_no_daemon_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    capability = backend.DockerBackend().probe()
    assert not capability.available and not capability.verbs
    assert "nothing.sock" in capability.summary and "make engines" in capability.summary
    with pytest.raises(CannotRunError, match="DOCKER_HOST"):
        backend.DockerBackend().open(TRAINING, tmp_path, "run")
    gc.collect()  # a socket that was left open would be found here, and be an error


def test_storage_is_refused_where_it_cannot_be_mounted() -> None:
    assert "another machine" in container_storage.why_not("tcp://elsewhere:2376", "10001:10001")
    assert "another machine" in container_storage.why_not("ssh://elsewhere", "10001:10001")
    assert "root" in container_storage.why_not("unix:///run/user/1000/docker.sock", "0:0"), "a daemon without root"


def test_a_relative_run_directory_is_refused_and_so_is_a_flag_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="absolute"):
        backend.DockerBackend().open(TRAINING, pathlib.Path("reports/x"), "run")
    monkeypatch.setenv(backend.GPUS_ENV, "yes")
    with pytest.raises(UsageError, match="'yes'"):
        backend._flag(backend.GPUS_ENV)


def frame(kind: int, data: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12), st.integers(1, 50))
def test_output_and_errors_are_told_apart(frames: list[tuple[int, bytes]], size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(frame(kind, data) for kind, data in frames))
        theirs.shutdown(socket.SHUT_WR)
        errors = io.BytesIO()
        stream, output = AttachedStream(ours, errors), b""
        while chunk := stream.recv(size):
            assert len(chunk) <= size
            output += chunk
        assert output == b"".join(data for kind, data in frames if kind == 1)
        assert errors.getvalue() == b"".join(data for kind, data in frames if kind == 2)
