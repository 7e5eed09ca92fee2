"""What is asked of the Docker Engine, compared whole; nothing here needs an engine."""

import gc
import io
import json
import os
import pathlib
import socket
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.contract import Launch
from harness.backends.docker import backend, engine, request
from harness.backends.docker.stream import AttachedStream
from harness.errors import CannotRunError, FaultError
from harness.log.journal import JOURNAL
from harness.node import container_storage
from harness.run import undo

SNAPSHOT = pathlib.Path(__file__).with_name("docker_request.yaml")
TRAINING = Launch(
    ("{python}", "train.py"), nodes=2, ranks_per_node=2, env={"LR": "1"}, control=("{python}", "store.py")
)


def snapshot() -> str:
    sidecar = request.sidecar(request.DockerRun(run_id="r"), "node0", 1, "abc")
    asked = backend.BACKEND.render(TRAINING) | {"sidecar": sidecar}
    return yaml.safe_dump(json.loads(json.dumps(asked)), sort_keys=False, width=120)


def test_the_request_as_a_whole() -> None:
    """After a change that is meant: `python tests/backends/docker/test_docker_request.py`, and read the difference."""
    assert snapshot() == SNAPSHOT.read_text()


def test_every_rank_gets_a_gpu_of_its_own_and_a_way_out_only_if_that_is_asked_for() -> None:
    out = request.DockerRun(egress=True)
    assert request.network(out)["Internal"] is False
    mounts = request.container(TRAINING, out, "node0", 1)["HostConfig"]["Mounts"]
    assert "/etc/resolv.conf" not in [mount["Target"] for mount in mounts]
    asked = request.render(TRAINING, request.DockerRun(gpus=True))["containers"]
    gpus = {name: each["HostConfig"].get("DeviceRequests") for name, each in asked.items()}
    assert gpus["control"] is None
    assert "control" not in request.render(Launch(("true",), 1, 1), request.DockerRun())["containers"]
    assert [gpus[name][0]["DeviceIDs"] for name in ("node0", "node1")] == [["0", "1"], ["2", "3"]]
    assert gpus["node0"][0]["Capabilities"] == [["gpu"]]
    hosts = [each["HostConfig"] for each in asked.values()]
    assert all("Privileged" not in host and "CapAdd" not in host and host["CapDrop"] == ["ALL"] for host in hosts)


@given(st.text(min_size=1, max_size=300))
def test_no_run_id_can_break_out_of_a_name(run_id: str) -> None:
    name = request.DockerRun(run_id=run_id).container("node0", 1)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-{}")
    assert set(name) <= allowed and len(name) < 128
    assert request.DockerRun(run_id="a/b").prefix != request.DockerRun(run_id="a b").prefix


def test_a_run_is_undone_with_its_own_settings_of_the_engine_and_no_other_variable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(backend, "Engine", lambda: seen.append(os.environ["DOCKER_HOST"]) or Mock())
    monkeypatch.setenv("DOCKER_HOST", "unix:///another.sock")
    given = {"run_id": "a-run", "environment": {"DOCKER_HOST": "unix:///of-the-run.sock"}}
    (tmp_path / JOURNAL).write_text(json.dumps({"undo": "backends.docker", "arguments": given}))
    undo.undo_open(tmp_path)
    assert seen == ["unix:///of-the-run.sock"] and os.environ["DOCKER_HOST"] == "unix:///another.sock"
    given["environment"] = {"LD_PRELOAD": "evil.so"}
    (tmp_path / JOURNAL).write_text(json.dumps({"undo": "backends.docker", "arguments": given}))
    with pytest.raises(FaultError, match="LD_PRELOAD"):
        undo.undo_open(tmp_path)


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


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
