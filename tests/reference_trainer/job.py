"""Runs a real job on this machine, each node a process group, and watches its event log."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from harness.events import WriterLog, read_log

ROOT = pathlib.Path(__file__).parents[2]

QUICK = ["--global-batch", "8", "--checkpoint-every", "10", "--metadata", "off", "--device", "cpu"]


class Job:
    """A rendezvous store and any number of nodes. Leaves no process behind: use it with `with`."""

    def __init__(self, folder: pathlib.Path, steps: int, extra: list[str] | None = None, nproc: int = 1):
        self.folder = folder
        self.events = folder / "events"
        self.checkpoints = folder / "checkpoints"
        self.nproc = nproc
        self.trainer = ["--steps", str(steps), *QUICK, "--checkpoint-dir", str(self.checkpoints), *(extra or [])]
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._incarnations: dict[str, int] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._endpoint = ""

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.nodes.values(), *([self._store] if self._store else [])]:
            kill_group(process)

    def environment(self, node: str) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(ROOT),
            "CHAOS_EVENTS": str(self.events),
            "CHAOS_NODE": node,
            "CHAOS_INCARNATION": str(self._incarnations.get(node, 1)),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def start_store(self) -> str:
        """Starts the rendezvous store, once; returns its endpoint."""
        if self._store is None:
            command = [sys.executable, "-m", "reference_trainer.store", "--host", "127.0.0.1", "--port", "0"]
            self._store = subprocess.Popen(
                command, env=self.environment("store"), stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._store.stdout
            self._endpoint = self._store.stdout.readline().decode().split()[-1]
        return self._endpoint

    def start_node(self, name: str, nnodes: str = "1:1", environment: dict[str, str] | None = None) -> None:
        """Starts a node, or the next incarnation of one."""
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        command = [sys.executable, "-m", "reference_trainer.launch", "--nnodes", nnodes]
        command += ["--nproc-per-node", str(self.nproc), "--rdzv-endpoint", self.start_store()]
        self.start(name, [*command, "--", *self.trainer], environment)

    def start(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.folder.mkdir(exist_ok=True)
        with (self.folder / f"{name}.out").open("ab") as output:
            self.nodes[name] = subprocess.Popen(
                command,
                env=self.environment(name) | (environment or {}),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def log(self) -> list[WriterLog]:
        return read_log(self.events) if self.events.is_dir() else []

    def all_events(self, name: str) -> list[dict[str, Any]]:
        """All events of this name with their writer's header fields, by time."""
        found = [log.header | event for log in self.log() for event in log.events if event["event"] == name]
        return sorted(found, key=lambda event: event["mono_ns"])

    def furthest_step(self) -> int:
        return max((event["step"] for event in self.all_events("step")), default=0)

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {limit_s} s\n{self.output()}")
            time.sleep(0.01)

    def wait_for_step(self, step: int, limit_s: float = 60) -> None:
        self.wait_for(lambda: self.furthest_step() >= step, f"step {step}", limit_s)

    def wait(self, name: str, limit_s: float = 60) -> int:
        """The exit code of a node's launcher."""
        try:
            return self.nodes[name].wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end within {limit_s} s\n{self.output()}") from None

    def workers(self, node: str) -> dict[int, int]:
        """pid by local rank of the workers that this node's launcher started last."""
        started = [log.header for log in self.log() if log.header["role"] == "trainer" and log.header["node"] == node]
        return {header["local_rank"]: header["pid"] for header in sorted(started, key=lambda h: h["mono_ns"])}

    def output(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.out"))


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to everything on a node at once, as when it loses power."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)


def surviving_losses(job: Job) -> dict[int, float]:
    """The loss of each step in the lineage that survived: the last time each step was done."""
    return {event["step"]: event["loss"] for event in job.all_events("step")}
