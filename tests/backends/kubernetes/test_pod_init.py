"""Process 1 of a pod and what the harness keeps of it, without a cluster: the same program in a PID namespace."""

import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import HANG_S, until

from harness.backends import delivery
from harness.backends.kubernetes.mirror import Mirror, Stamp
from harness.errors import BackendError, FaultError, UsageError
from harness.node import rpc
from harness.node.node_paths import POD_RUN_DIR

NODE = "node3"
PROGRAM = """
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[3])
from harness.node.pod_init import PodInit
asyncio.run(PodInit(sys.argv[1], pathlib.Path(sys.argv[2])).serve())
"""


class LocalPod:
    """The init of a pod as process 1 of a namespace, and a line to it."""

    def __init__(self, root: pathlib.Path, here: pathlib.Path, role: str = "node", index: int = 3):
        self.root = root
        self.events: queue.Queue[rpc.Message] = queue.Queue()
        self.mirror = Mirror(here, lambda: [self.client])
        self.ended = threading.Event()
        ours, theirs = socket.socketpair()
        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (here / "init.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-I", "-S", "-c", PROGRAM, role, str(root), str(delivery.deliver(here))],
                stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=log,
                env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index), "POD_IP": "127.0.0.1"},
            )  # fmt: skip
        theirs.close()
        self.client = rpc.Line(ours, self._take, self.ended.set)
        self.hello = self.call("hello", HANG_S)

    def call(self, method: str, limit_s: float = HANG_S, **params: Any) -> Any:
        return self.client.call(method, limit_s, **params)

    def run(self, *command: str, **env: str) -> None:
        self.call("run", command=list(command), env={"PATH": "/usr/bin:/bin", **env}, name=f"{NODE}.1")

    def code(self) -> int:
        while True:
            event = self.events.get()
            if event["event"] == "exit":
                return int(event["code"])

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def _take(self, event: rpc.Message) -> None:
        if not self.mirror.take(NODE, event):
            self.events.put(event)


@pytest.fixture
def here(tmp_path: pathlib.Path) -> pathlib.Path:
    """The run's folder on this side."""
    for name in (f"events/{NODE}", f"answers/{NODE}", "logs", "holds"):
        (tmp_path / "here" / name).mkdir(parents=True)
    return tmp_path / "here"


@pytest.fixture
def pod(tmp_path: pathlib.Path, here: pathlib.Path) -> Iterator[LocalPod]:
    started = LocalPod(tmp_path / "there", here)
    yield started
    started.close()


def test_it_says_who_it_is_and_what_is_written_arrives_before_the_news_of_the_end(
    pod: LocalPod, here: pathlib.Path
) -> None:
    """But not a half line that was taken back; and nothing is put outside the run."""
    told = {"index": 3, "device": "lo", "digest": delivery.digest(), "trainer": ""}
    assert told.items() <= pod.hello.items()
    with pytest.raises(UsageError, match="not below the run"):
        pod.call("put", name="../elsewhere", data="x")
    script = "printf 'whole\\nhal' >$CHAOS_EVENTS/w.jsonl; sleep 0.3; truncate -s 6 $CHAOS_EVENTS/w.jsonl"
    script += "; echo out; echo next >>$CHAOS_EVENTS/w.jsonl; exit 3"
    pod.run("sh", "-c", script, CHAOS_EVENTS=f"{pod.root}/events/{NODE}")
    assert pod.code() == 3
    assert (here / "logs" / f"{NODE}.1.log").read_text() == "out\n"
    assert (here / "events" / NODE / "w.jsonl").read_text() == "whole\nnext\n"


def test_what_a_killed_pod_wrote_has_come(pod: LocalPod, here: pathlib.Path) -> None:
    """Bytes that are no text, too; of events whole lines, of logs all."""
    script = "printf 'a\\377\\nhal' >$CHAOS_EVENTS/w.jsonl; printf 'tail'; sleep 600"
    pod.run("sh", "-c", script, CHAOS_EVENTS=f"{pod.root}/events/{NODE}")
    log = here / "logs" / f"{NODE}.1.log"
    until(lambda: log.exists() and log.read_text() == "tail", "sent")
    with pytest.raises(BackendError):
        pod.call("die")
    assert pod.ended.wait()
    assert pod.process.wait() != 0
    assert (here / "events" / NODE / "w.jsonl").read_bytes() == b"a\xff\n"


def test_files_of_the_run_follow_those_here(pod: LocalPod, here: pathlib.Path) -> None:
    pod.mirror.start()
    (here / "holds.json").write_text(f'["{here}/holds/f.armed"]')
    (here / "holds" / "f.armed").touch()
    until((pod.root / "holds" / "f.armed").exists, "the file is there, too")
    assert until(lambda: (pod.root / "holds.json").exists() and (pod.root / "holds.json").read_text(), "content") == (
        f'["{POD_RUN_DIR}/holds/f.armed"]'
    ), "paths are those in a pod"
    (here / "holds" / "f.armed").unlink()
    until(lambda: not (pod.root / "holds" / "f.armed").exists(), "the file is gone there, too")
    pod.mirror.close()


def test_a_claim_comes_here_and_its_grant_goes_there(pod: LocalPod, here: pathlib.Path) -> None:
    pod.mirror.start()
    token = here / "holds" / "f.act.strike-0-0"
    token.touch()
    until((pod.root / "holds" / token.name).exists, "the token is there")
    (pod.root / "answers" / NODE / token.name).touch()
    until((here / "answers" / NODE / token.name).exists, "an empty file is told of, too")
    token.rename(f"{token}.{NODE}")
    until(lambda: not (pod.root / "holds" / token.name).exists(), "the token is gone there")
    assert (pod.root / "holds" / f"{token.name}.{NODE}").exists(), "by then the grant must be there"
    pod.mirror.close()


def test_a_look_beside_a_renaming_takes_nothing_away(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a look may show neither the old name nor the new one."""
    there: set[str] = set()

    class Line:
        def call(self, method: str, *, name: str, data: str | None, **_: Any) -> None:
            there.discard(name) if data is None else there.add(name)
            assert there, "one of the names is there at any time"

    mirror = Mirror(here, lambda: [Line()])  # type: ignore[list-item]
    (here / "holds" / "token").touch()
    mirror.push()
    (here / "holds" / "token").rename(here / "holds" / f"token.{NODE}")
    found, looks = mirror._found, iter([dict[str, Stamp](), None])
    monkeypatch.setattr(mirror, "_found", lambda names: found(names) if (seen := next(looks, None)) is None else seen)
    mirror.push()
    assert there == {f"holds/token.{NODE}"}


OUTSIDE = [
    "../plan.json",
    f"events/{NODE}/../../plan.json",
    "/etc/passwd",
    "plan.json",
    "undo.jsonl",
    "events/harness.jsonl",
    "events/w.jsonl",
    "events/node1/w.jsonl",
    "events/control/w.jsonl",
    f"events/{NODE}/.hidden",
    f"events/{NODE}/deep/w.jsonl",
    "answers/node1/f.act.strike-0-0",
    "holds/f.act.released",
    "logs/reverter.log",
    "logs/node1.1.log",
    "logs/node30.1.log",
    f"logs/{NODE}.1.init.log",
    "logs/control.log",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_pod_writes_nowhere_but_to_the_places_of_its_node(here: pathlib.Path, name: str) -> None:
    """Whatever it says it is: another node, the harness itself."""
    (here / "events" / "harness.jsonl").write_text("ours")
    mirror = Mirror(here, lambda: [])
    with pytest.raises(BackendError, match=f"it may write events/{NODE}/"):
        mirror.take(NODE, {"event": "wrote", "name": name, "offset": 0, "data": "forged"})
    assert (here / "events" / "harness.jsonl").read_text() == "ours"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"offset": 5, "data": "beyond the end"},
        {"offset": -1, "data": "before the begin"},
        {"offset": "0", "data": "x"},
        {"offset": 0, "data": ["x"]},
    ],
)
def test_a_write_that_makes_no_sense_or_goes_through_a_link_is_refused(
    here: pathlib.Path, event: dict[str, Any]
) -> None:
    wrote = {"event": "wrote", "name": f"events/{NODE}/w.jsonl"}
    with pytest.raises(BackendError):
        Mirror(here, lambda: []).take(NODE, wrote | event)
    file = here / "events" / NODE / "w.jsonl"
    assert not file.exists() or file.read_bytes() == b""
    (here / "events" / "harness.jsonl").write_text("ours")
    file.unlink(missing_ok=True)
    file.symlink_to("../harness.jsonl")
    with pytest.raises(FaultError, match="left alone"):
        Mirror(here, lambda: []).take(NODE, wrote | {"offset": 0, "data": "forged"})
    assert (here / "events" / "harness.jsonl").read_text() == "ours"


def test_eviction_is_told_to_everything_and_the_pod_ends_after_the_command(pod: LocalPod, here: pathlib.Path) -> None:
    pod.run("sh", "-c", "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    log = here / "logs" / f"{NODE}.1.log"
    until(lambda: log.exists() and "up" in log.read_text(), "up")
    children = pathlib.Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children")
    os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
    assert pod.code() == 0
    assert pod.process.wait() == 143, "with 0 an engine would call the job done, and not bring the node back"
    assert "saved" in log.read_text()


def test_silence_ends_the_pod(tmp_path: pathlib.Path, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__],
        "PROGRAM",
        PROGRAM.replace("asyncio.run", "from harness.node import pod_init\npod_init.SILENT_S_MAX = 5\nasyncio.run"),
    )
    pod = LocalPod(tmp_path / "there", here)
    pod.run("sleep", "600")
    assert pod.ended.wait()
    assert pod.process.wait() == 0, "with another code its job would bring it back, for nobody"
    pod.close()
