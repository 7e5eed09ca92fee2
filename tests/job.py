"""Runs real jobs on this machine, each node a process group of its own, and watches their event logs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore
from waiting import HANG_S, until

from harness.log.event_log import Tail
from harness.node.emitter import HOLDS_ENV

ROOT = pathlib.Path(__file__).parents[1]
NURSERY = ROOT / "tests" / "reference_trainer" / "nursery.py"

# A model so small that a step takes a few milliseconds.
TINY = ["--layers", "2", "--heads", "2", "--width", "32", "--context", "32", "--compute-s", "0", "--global-batch", "8"]
QUICK = [*TINY, "--checkpoint-every", "10", "--metadata", "off", "--device", "cpu"]
QUICK += ["--hang-floor-s", "120", "--collective-timeout-s", "600"]  # a busy machine is no hang


def hold_after(folder: pathlib.Path, *steps: int) -> dict[str, str]:
    """The environment of trainers that wait after each of these steps until `let_go`."""
    folder.mkdir(exist_ok=True)
    (folder / "armed").touch()
    paths = {"armed": str(folder / "armed"), "limit_s": HANG_S}
    file = folder / "holds.json"
    holds = [
        {"match": {"event": "step", "step": step}, "released": str(_released(folder, step)), **paths} for step in steps
    ]
    file.write_text(json.dumps(holds))
    return {HOLDS_ENV: str(file)}


def let_go(folder: pathlib.Path, step: int) -> None:
    _released(folder, step).touch()


def _released(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / f"go-on.{step}"


class Nursery:
    """Starts nodes without the seconds that importing torch takes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout and self._process.stdout.readline() == "ready\n"
        self._born: queue.Queue[int] = queue.Queue()
        self.codes: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            if "code" in message:
                self.codes[message["pid"]] = message["code"]
            else:
                self._born.put(message["pid"])

    def start(self, arguments: list[str], environment: dict[str, str], output: pathlib.Path) -> int:
        assert self._process.stdin
        order = {"arguments": arguments, "environment": environment, "output": str(output)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._born.get()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout
        self._process.stdout.close()


class Job:
    """A rendezvous store and any number of nodes. Leaves no process behind: use it with `with`."""

    def __init__(self, nursery: Nursery, folder: pathlib.Path, steps: int, *extra: str, nproc: int = 1):
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.nproc = nproc
        self.trainer = ["--steps", str(steps), *QUICK, "--checkpoint-dir", str(self.checkpoints), *extra]
        self.nodes: dict[str, int] = {}
        self.events: list[dict[str, Any]] = []  # each with its writer's header fields
        self._nursery = nursery
        self._holds: dict[str, str] = {}
        self._incarnations: dict[str, int] = {}
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._tail = Tail(folder / "events")
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.nodes:
            self.kill(name)

    def start(self, name: str, nnodes: str = "1:1", **environment: str) -> None:
        """Starts a node, or the next incarnation of one."""
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        endpoint = f"127.0.0.1:{self._store.port}"
        arguments = ["--nnodes", nnodes, "--nproc-per-node", str(self.nproc), "--rdzv-endpoint", endpoint]
        environment |= {
            "CHAOS_EVENTS": str(self.folder / "events"),
            "CHAOS_NODE": name,
            "CHAOS_INCARNATION": str(self._incarnations[name]),
            "GLOO_SOCKET_IFNAME": "lo",
            **self._holds,
        }
        output = self.folder / f"{name}.out"
        self.nodes[name] = self._nursery.start([*arguments, "--", *self.trainer], environment, output)

    def kill(self, name: str) -> None:
        """SIGKILL to everything on a node at once, as when it loses power."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.nodes[name], signal.SIGKILL)

    def seen(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """All events so far with this name and these fields, in the order of time."""
        new = self._tail.poll()
        self.events += [header | record for header, record in new]
        wanted = fields | {"event": event}
        found = [record for record in self.events if all(record.get(key) == value for key, value in wanted.items())]
        return sorted(found, key=lambda record: record["mono_ns"])

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, lambda: f"{what}\n{self.output()}")

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: any(e["step"] >= step for e in self.seen("step")), f"step {step}")

    def stop_after(self, *steps: int) -> None:
        """The job is to wait after each of these steps until `go_on`: who looks may be slower than many steps."""
        self._holds = hold_after(self.folder, *steps)

    def wait_stopped(self, step: int) -> None:
        self.wait_for(lambda: len(self.seen("step", step=step)) >= self.nproc * len(self.nodes), f"step {step} of all")

    def go_on(self, step: int) -> None:
        let_go(self.folder, step)

    def code(self, name: str) -> int:
        """The exit code of a node's launcher, once it has ended."""
        self.wait_for(lambda: self.nodes[name] in self._nursery.codes, f"the end of {name}")
        return self._nursery.codes[self.nodes[name]]

    def workers(self, node: str) -> dict[int, int]:
        """pid by local rank of the workers that this node's launcher started last."""
        return {event["local_rank"]: event["pid"] for event in self.seen("started", node=node)}

    def losses(self) -> dict[int, float]:
        """The loss of each step in the lineage that survived: the last time each step was done."""
        return {event["step"]: event["loss"] for event in self.seen("step")}

    def output(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.out"))


def completed(nursery: Nursery, folder: pathlib.Path, steps: int, *extra: str, nproc: int = 1) -> Job:
    """A job of one node that ran to its end."""
    with Job(nursery, folder, steps, *extra, nproc=nproc) as job:
        job.start("a")
        assert job.code("a") == 0, job.output()
        job.seen("step")
        return job
