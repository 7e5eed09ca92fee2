"""Selects the events of a run's log that any cluster's logs would show, too, as the input of the built-in diagnoser.

Only the events and fields in `KEPT` are selected. The selection leaves out the plan, faults, their effects, failpoints
(named places in the trainer), what the harness saw in the checkpoint store, the trainer's own alarms, and digests of
weights. Of a trainer's alarm, only the stack trace is selected, because py-spy or faulthandler would print the same
stack trace into the trainer's output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from harness.log.reading import Log, Writer

STACK = "stack"
STACK_BEGIN = ("Thread 0x", "Current thread 0x")
STACK_LINES = 8  # of the main thread, which faulthandler prints last
WORDS_MAX = 300  # characters of an event, as shown

# By the role of the writer: its events, and the fields of each.
KEPT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "trainer": {  # its output: what it prints of itself
        "started": (),
        "rendezvous": ("world_size",),
        "restored": ("step", "source", "fallback"),
        "checkpoint.started": ("step",),
        "checkpoint.committed": ("step", "duration_ns"),
        "checkpoint.failed": ("step", "error"),
        "notice": ("source",),
        "exiting": ("code", "reason", "step", "error"),
        "usage": ("memory_bytes", "memory_bytes_limit", "gpus", "peers"),
        "flight_recorder": ("group", "number", "operation", "over"),
    },
    "agent": {
        "agent.started": (),
        "agent.rendezvous": ("edge", "nodes", "node_rank"),
        "worker.exit": ("local_rank", "rank", "pid", "code"),
        "agent.exiting": ("code",),
        "notice": ("source",),
    },
    "harness": {  # what Slurm or Kubernetes tells of nodes
        "node.allocated": ("node", "incarnation"),
        "node.released": ("node", "incarnation"),
        "process.exit": ("node", "incarnation", "code"),
    },
}
COLUMNS = ("step", "begin", "end", "loss", "grad_norm", "data_ns", "checkpoint_ns", "sync_ns")
Key = tuple[str, int]  # node and incarnation


class Event(NamedTuple):
    """One logged event. `at` is in ns on the run's clock. `place` names who logged the event, such as `rank 3 on
    node1`."""

    at: int
    name: str
    place: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.fields.items() if value not in (None, "", []))
        return " ".join(f"{self.place}: {self.name} {told}".split())[:WORDS_MAX]


@dataclass(frozen=True)
class Worker:
    """One worker process. Each column of `steps` has an entry per step. `ended` is the launcher's log entry about the
    worker's end, or `None`."""

    rank: int
    key: Key
    started: int
    events: Sequence[Event]
    steps: Mapping[str, npt.NDArray[Any]]
    ended: Event | None

    @property
    def node(self) -> str:
        return self.key[0]

    @property
    def place(self) -> str:
        return f"rank {self.rank} on {self.node}"

    @property
    def last_step_end(self) -> int:
        return int(self.steps["end"][-1]) if len(self.steps["end"]) else self.started

    @property
    def last_step(self) -> int:
        return int(self.steps["step"][-1]) if len(self.steps["step"]) else 0

    def told(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


class Node(NamedTuple):
    """One node. `launcher` holds the log entries of the node's launcher. `ended` is the logged end of the node's
    command. `allocated` is True if the job trains on the node; other nodes serve the job, for example with a store."""

    key: Key
    launcher: Sequence[Event]
    ended: Event | None
    allocated: bool = True


@dataclass(frozen=True)
class View:
    """The part of a run's log that the logs of any cluster hold, too. `wall_offset_ns` is the wall clock minus the
    run's clock, in ns."""

    workers: Sequence[Worker]  # in order of start
    nodes: Sequence[Node]
    begin: int
    wall_offset_ns: int

    @property
    def at_address(self) -> Mapping[str, str]:
        usage = [(worker.node, event) for worker in self.workers for event in worker.told("usage")]
        return {str(each.get("local")): node for node, event in usage for each in event.fields.get("peers") or ()}

    def told(self, name: str) -> list[Event]:
        found = [event for worker in self.workers for event in worker.told(name)]
        found += [event for node in self.nodes for event in node.launcher if event.name == name]
        return sorted(found, key=lambda event: event.at)


def view_of(log: Log) -> View:
    told = [(writer, sorted(_kept(writer), key=lambda event: event.at)) for writer in log.writers]
    cluster = [event for writer, events in told if writer.role == "harness" for event in events]
    launchers = {_key(event.fields): list[Event]() for event in cluster}
    for key, events in ((_key(writer.header), events) for writer, events in told if writer.role == "agent"):
        launchers.setdefault(key, []).extend(events)
    ends = {_key(event.fields): event for event in reversed(cluster) if event.name == "process.exit"}
    exits: dict[tuple[Key, object], list[Event]] = {}
    for key, event in ((key, event) for key, events in launchers.items() for event in events):
        if event.name == "worker.exit":
            exits.setdefault((key, event.fields.get("pid")), []).append(event)
    workers = [_worker(writer, events, exits) for writer, events in told if writer.role == "trainer"]
    workers.sort(key=lambda worker: worker.started)
    clock = (log.harness or log.writers[0]).header
    begins = [*(worker.started for worker in workers), *(events[0].at for events in launchers.values() if events)]
    given = {_key(event.fields) for event in cluster if event.name == "node.allocated"}
    nodes = [Node(key, events, ends.get(key), key in given) for key, events in launchers.items()]
    return View(workers, nodes, min(begins, default=clock["at"]), clock["wall_ns"] - clock["at"])


def _worker(writer: Writer, events: Sequence[Event], exits: Mapping[tuple[Key, object], Sequence[Event]]) -> Worker:
    """Returns a worker, whose end is the first logged exit of its process id on its node after its start."""
    header, key = writer.header, _key(writer.header)
    seen = (event for event in exits.get((key, header.get("pid")), ()) if event.at >= header["at"])
    steps = {column: writer.steps[column] for column in COLUMNS}
    return Worker(int(header.get("rank", 0)), key, header["at"], events, steps, next(seen, None))


def _kept(writer: Writer) -> Iterator[Event]:
    header, kept = writer.header, KEPT.get(writer.role, {})
    node = str(header.get("node", header.get("host", "")))
    place = {"trainer": f"rank {header.get('rank', 0)} on {node}", "agent": f"launcher of {node}"}.get(writer.role)
    for event in writer.events:
        name = str(event.get("event"))
        if name in kept:
            fields = {each: event[each] for each in kept[name] if each in event}
            yield Event(event["at"], name, place or "cluster", fields)
        elif name == "anomaly" and writer.role == "trainer" and (stack := _stack(event.get("detail"))):
            yield Event(event["at"], STACK, str(place), {"of": stack})


def _stack(detail: object) -> str:
    lines = str(detail or "").splitlines()
    begins = [place for place, line in enumerate(lines) if line.startswith(STACK_BEGIN)]
    return "\n".join(lines[begins[-1] + 1 :][:STACK_LINES]) if begins else ""


def _key(told: Mapping[str, Any]) -> Key:
    incarnation = told.get("incarnation")
    return str(told.get("node", told.get("host"))), 1 if incarnation is None else int(incarnation)
