"""Provides stand-ins for a node and for a fault's context, to test a fault without a job. The stand-ins record the
fault's calls."""

from __future__ import annotations

import pathlib
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from harness.backends.contract import Node
from harness.faults.contract import Target
from harness.node.types import ProcessState


class FakeNode(Node):
    """A node with one process, to test a fault without a job. An act (verb) that neither `FakeNode` nor a subclass
    defines raises an error."""

    done: list[str]  # names of the methods that were called: signal, kill, freeze, thaw
    alive: bool = True

    def __init__(self, index: int = 0):
        self.name, self.index, self.incarnation, self.address = f"node{index}", index, 1, "127.0.0.1"
        self.done = []
        self._state = "S"

    def pids(self) -> list[int]:
        return [10] if self.alive else []

    def processes(self) -> list[ProcessState]:
        return [ProcessState(pid, self._state, 0) for pid in self.pids()]

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        self.done.append("signal")
        self._state = {signal.SIGSTOP: "T", signal.SIGCONT: "S"}.get(signum, self._state)
        self.alive = self.alive and signum != signal.SIGKILL
        return 1

    def kill(self) -> None:
        self.done.append("kill")
        self.alive = False

    def freeze(self) -> None:
        self.done.append("freeze")
        self._state = "T"

    def thaw(self) -> None:
        self.done.append("thaw")
        self._state = "S"


class FaultContext:
    """A `Context` for tests, with any folder as `run_dir`. Rank 0 is on node 0, and rank 1 on node 1. A subclass can
    add what else a fault needs."""

    effects: list[tuple[float, float, str, bool]]  # measured, expected, unit, ok
    ends: list[tuple[float, float, str, bool]]  # the same of `ended`
    logged: list[dict[str, Any]]  # events of `log`
    actions: list[str]  # of `undo`
    undos: list[dict[str, Any]]  # their arguments

    def __init__(self, run_dir: pathlib.Path, seed: int = 7, nodes: int = 1, waits: bool = False):
        self.run_dir, self.seed, self.waits, self.job_goes_on = run_dir, seed, waits, False
        self.cluster: Any = SimpleNamespace(nodes=[FakeNode(index) for index in range(nodes)], on_this_host=True)
        self.effects, self.ends, self.logged, self.actions, self.undos = [], [], [], [], []

    def node(self, target: Target) -> Any:
        return self.cluster.nodes[target.node_index]

    def pid_of(self, rank: int) -> tuple[Any, int]:
        return self.cluster.nodes[rank], self.cluster.nodes[rank].pids()[0]

    def wait(
        self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Stands in for `Context.wait`: checks the condition `until` only once, without waiting. If `waits` is True,
        waits for at most `seconds` seconds until the condition is true, as in a run."""
        end = time.monotonic() + (seconds if self.waits else 0)
        while not (until and until()):
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def log(self, event: str, **fields: Any) -> None:
        self.logged.append({"event": event, **fields})

    def undo(self, action: str, **arguments: Any) -> None:
        self.actions.append(action)
        self.undos.append(arguments)

    def ready(self) -> None: ...

    def injected(self) -> None: ...

    def injected_again(self, target: Target, node: Node) -> None: ...

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.effects.append((measured, expected, unit, ok))

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        self.ends.append((measured, expected, unit, ok))
