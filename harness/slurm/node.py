"""A place of a Slurm job, and what is done to it through `srun --overlap` in the job's own allocation."""

from __future__ import annotations

import pathlib
import signal
import subprocess
from typing import Protocol

from harness import clocks, skew
from harness.backend import ClockReading, Node
from harness.errors import BackendError, NodeGone

# Runs on a node. Prints the processes with the marks and their descendants; signals them if asked.
NODE_PROGRAM = """
import os, sys
signum, only, *marks = sys.argv[1:]
parents, found = {}, set()
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\\0")
    except OSError:
        continue
    if state in "ZX" or pid == os.getpid():
        continue
    parents[pid] = int(parent)
    if all(mark.encode() in environment for mark in marks):
        found.add(pid)
while more := {pid for pid, parent in parents.items() if parent in found} - found:
    found |= more
if only != "all":
    found &= {int(only)}
for pid in sorted(found):
    try:
        if int(signum):
            os.kill(pid, int(signum))
        print(pid)
    except ProcessLookupError:
        pass
"""


# Says its host's name, and then the time for every line it is sent.
CLOCK_PROGRAM = """
import socket, sys, time
print(socket.gethostname(), flush=True)
for _ in sys.stdin:
    print(time.time_ns(), flush=True)
"""


def ask_clock(talk: subprocess.Popen[str]) -> ClockReading:
    """`talk` runs `CLOCK_PROGRAM`. Raises `BackendError` when it ends before it has answered."""
    assert talk.stdin is not None and talk.stdout is not None
    questions, answers = talk.stdin, talk.stdout

    def answer() -> str:
        line = answers.readline().strip()
        if not line:
            raise BackendError("a node did not tell its time")
        return line

    def ask() -> int:
        questions.write("\n")
        questions.flush()
        return int(answer())

    try:
        return clocks.compare(answer(), ask)
    except BrokenPipeError as error:
        raise BackendError("a node did not tell its time") from error


class Job(Protocol):
    """What a node asks of its cluster."""

    run_dir: pathlib.Path

    def on_node(self, node: SlurmNode, signum: int, pid: int | None = None) -> list[int]: ...
    def take_down(self, node: SlurmNode) -> None: ...
    def evict(self, node: SlurmNode) -> None: ...


class SlurmNode(Node):
    """One place of the job in one incarnation. `host` is what Slurm calls the node there; empty until it runs."""

    def __init__(self, cluster: Job, index: int, incarnation: int):
        self.name = f"node{index}"
        self.index = index
        self.incarnation = incarnation
        self.host = ""
        self.address = ""
        self.gone = False
        self._cluster = cluster

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        return bool(self.host) and not self.gone

    def pids(self) -> list[int]:
        return self._cluster.on_node(self, 0) if self.alive else []

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        if not self.alive:
            raise NodeGone(f"{self.key} is gone")
        return len(self._cluster.on_node(self, int(signum), pid))

    def kill(self) -> None:
        self._cluster.take_down(self)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def skew_clock(self, offset_s: float) -> None:
        skew.set_offset(self._cluster.run_dir, self.name, offset_s)

    def evict(self, grace_s: float) -> None:
        """The grace is the site's (GraceTime of our partition, KillWait): Slurm lets nobody choose it for one job."""
        self._cluster.evict(self)
