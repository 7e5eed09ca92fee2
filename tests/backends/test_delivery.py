"""What is delivered to a node stands alone there, on any Python from 3.9 on."""

import ast
import hashlib
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest
from event_files import read_log
from waiting import HANG_S

from harness.backends import delivery
from harness.backends.contract import Launch
from harness.node import boot, rpc

OLDEST = (3, 9)
IMPORT_ALL = """
import sys, zipfile
sys.path.insert(0, sys.argv[1])
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if name.endswith(".py") and "pod_init" not in name:
        __import__(name[: -len(".py")].replace("/", ".").replace(".__init__", ""))
foreign = {module.__name__ for module in sys.modules.values() if "site-packages" in (getattr(module, "__file__", "") or "")}
print(sorted(foreign))
"""
EMIT = """
from harness.events import Emitter
emit = Emitter.open("trainer", rank=1, local_rank=0, world_size=2)
emit("started"); emit.failpoint("here"); emit("step", step=1, loss=float("nan"))
"""


def interpreters() -> Iterator[str]:
    """This one, and each other Python that is here from 3.9 on."""
    yield sys.executable
    homes = [pathlib.Path.home() / ".pyenv" / "versions", pathlib.Path("/opt/hostedtoolcache/Python")]
    places = ("*/bin/python3", "*/*/bin/python3")
    found = [path for home in homes for place in places for path in home.glob(place) if path.exists()]
    named = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20)]
    seen: set[tuple[int, ...]] = {sys.version_info[:2]}
    for path in (*map(str, found), *filter(None, named)):
        asked = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
        version = tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else ()
        if version >= OLDEST and version not in seen:
            seen.add(version)
            yield path


@pytest.fixture(scope="module", params=[*interpreters()], ids=lambda path: path.replace("/", "-"))
def python(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(delivery.deliver(tmp_path_factory.mktemp("run")))


def test_it_is_written_for_the_oldest_python_and_needs_nothing_that_is_not_delivered() -> None:
    delivered = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in delivery.sources()}
    for name, path in delivery.sources().items():
        for node in ast.walk(ast.parse(path.read_text(), name, feature_version=OLDEST)):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            assert not (module or "").startswith("harness") or module in delivered, f"{path} needs {module}"


def test_the_same_source_makes_the_same_archive() -> None:
    first = delivery.archive()
    delivery.archive.cache_clear()
    assert delivery.archive() == first
    assert delivery.digest() == hashlib.sha256(first).hexdigest()
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert "harness/node/emitter/__init__.py" in names and not any("docker" in name for name in names)
    assert 4 * len(first) / 3 < 1_040_000, "as text it must fit into a config map of 1 MiB"


def test_all_of_it_is_imported_without_any_package(python: str, archive: str) -> None:
    done = subprocess.run(
        [python, "-I", "-S", "-W", "error", "-c", IMPORT_ALL, archive], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_trainer_emits(python: str, archive: str, tmp_path: pathlib.Path) -> None:
    env = {"CHAOS_EVENTS": str(tmp_path / "events" / "node0"), "CHAOS_NODE": "node0", "PYTHONPATH": "/nowhere"}
    done = subprocess.run([python, "-c", EMIT], env=boot.with_delivered(env, archive), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [log] = read_log(tmp_path / "events")
    assert (log.header["node"], log.header["rank"]) == ("node0", 1)
    assert [event["event"] for event in log.events] == ["started", "step"], "no holds, and so no failpoint"


def test_an_init_runs_a_command_and_tells_its_end(python: str, archive: str, tmp_path: pathlib.Path) -> None:
    ours, theirs = socket.socketpair()
    start = boot.command(python, archive, "harness.node.node_init", ["node0", "node0"])
    with ours, theirs, (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(start, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=errors)
        theirs.close()
        ours.settimeout(HANG_S)
        assert rpc.receive(ours)["event"] == "ready"
        code = "import harness.events, sys; sys.exit(7)"
        params = {"command": [python, "-c", code], "env": {}, "log": str(tmp_path / "log")}
        rpc.send(ours, {"id": 1, "call": "run", "params": params})
        messages = [rpc.receive(ours), rpc.receive(ours)]
        assert {"event": "exit", "code": 7} in messages, (messages, (tmp_path / "log").read_text())
        ours.shutdown(socket.SHUT_RDWR)
        assert process.wait() == 0, (tmp_path / "errors").read_text()


def test_the_working_folder_decides_nothing(archive: str, tmp_path: pathlib.Path) -> None:
    """A node's own disk may hold anything: its files are not taken for modules of ours, nor of Python."""
    for name in ("asyncio.py", "harness.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('hijacked')")
    start = boot.command(sys.executable, archive, "harness.node.burner", ["nothing", "0", "0"])
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(start, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "hijacked" not in done.stderr and "KeyError: 'nothing'" in done.stderr


def test_who_needs_the_reference_trainer() -> None:
    assert delivery.runs_reference_trainer(Launch(("{python}", "-m", "reference_trainer.launch"), 1, 1))
    assert not delivery.runs_reference_trainer(Launch(("python3", "train.py"), 1, 1))
    assert len(delivery.trainer_digest()) == 16 and json.dumps(delivery.trainer_digest())
