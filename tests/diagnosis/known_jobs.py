"""Small event logs whose every line is known: a job of one rank a node, whose ranks end each step together."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

MS = 10**6
WALL = 1_796_000_000 * 10**9
BEGIN = 10**12  # of the monotonic clock

Parts = Callable[[int, int], dict[str, float]]  # by rank and step: ms of own, data, checkpoint; `net` of all


class Job:
    """A job that did `steps` steps. `parts`: what is unlike the usual 100 ms of own work and 5 ms in the all-reduce."""

    def __init__(self, nodes: int = 3, steps: int = 60, parts: Parts = lambda rank, step: {}, loss: Any = None):
        self.files: dict[str, list[dict[str, Any]]] = {"harness": [self._header("harness", "harness")]}
        self.nodes, self.now = nodes, BEGIN
        for node in range(nodes):
            self.put("harness", "node.allocated", node=f"node{node}", incarnation=1, gpus=1)
            for role, name in (("agent", self.agent(node)), ("trainer", self.rank(node))):
                more = {"node": f"node{node}", "incarnation": 1, "pid": 10 + node}
                more |= {"rank": node, "local_rank": 0, "world_size": nodes} if role == "trainer" else {}
                self.files[name] = [self._header(role, name) | more]
        for step in range(1, steps + 1):
            usual = {"own": 100.0, "data": 2.0, "checkpoint": 0.0, "net": 5.0}
            told = {rank: usual | parts(rank, step) for rank in range(nodes)}
            mine = {rank: each["own"] + each["data"] + each["checkpoint"] for rank, each in told.items()}
            took, begin = max(mine.values()) + max(each["net"] for each in told.values()), self.now
            self.now += int(took * MS)
            for rank, each in told.items():
                spent: dict[str, Any] = {f"{name}_ns": int(each[name] * MS) for name in ("data", "checkpoint")}
                value = 2.5 if loss is None else loss(step)
                self.put(self.rank(rank), "step", step=step, begin_ns=begin, loss=value, grad_norm=1.0, lr=0.1,
                         sync_ns=int((took - mine[rank]) * MS), **spent)  # fmt: skip

    @staticmethod
    def rank(node: int) -> str:
        return f"trainer-node{node}.1-{node}-a"

    @staticmethod
    def agent(node: int) -> str:
        return f"agent-node{node}.1-a"

    @staticmethod
    def _header(role: str, name: str) -> dict[str, Any]:
        return {"schema": 1, "role": role, "writer": name, "host": "h", "clock": "c", "wall_ns": WALL, "mono_ns": BEGIN}

    def put(self, file: str, event: str, after_s: float = 0.0, **fields: Any) -> None:
        """Adds an event, so many seconds after the newest step."""
        at = self.now + int(after_s * 10**9)
        self.files[file].append({"event": event, "mono_ns": at, "wall_ns": at - BEGIN + WALL, **fields})

    def plan(self, *faults: Mapping[str, Any]) -> None:
        self.files["harness"].insert(1, {"event": "plan", "mono_ns": BEGIN, "plan": {"faults": list(faults)}})

    def fault(
        self, fault: str, node: int, rank: int | None = None, *, ok: bool = True, detail: str = "", **parameters: Any
    ) -> None:
        """Injects a fault now, and measures its effect."""
        self.plan({"id": fault, "fault": fault, "parameters": parameters})
        target = {"node": f"node{node}", "incarnation": 1, "rank": rank}
        self.put("harness", "fault.injected", fault=fault, kind=fault, may=[], targets=[target])
        self.put("harness", "fault.effect", fault=fault, ok=ok, measured=1, expected=1, unit="x", detail=detail)

    def die(self, node: int, code: int, after_s: float, **said: Any) -> None:
        """Ends a rank: its last words, if any, and what its launcher saw."""
        if said:
            self.put(self.rank(node), "exiting", after_s, code=code, **said)
        self.put(self.agent(node), "worker.exit", after_s, local_rank=0, rank=node, pid=10 + node, code=code)

    def write(self, folder: pathlib.Path) -> pathlib.Path:
        events = folder / "events"
        events.mkdir(parents=True, exist_ok=True)
        for name, lines in self.files.items():
            ordered = [lines[0], *sorted(lines[1:], key=lambda line: line["mono_ns"])]
            (events / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ordered))
        return folder
