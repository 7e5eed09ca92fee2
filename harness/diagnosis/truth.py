"""The truth of each fault: which answers about it are right. Each row moves to its fault's file once that may change.

A row says what a diagnoser can know at best: the kinds of answer that are right (the first one names the fault in
tables), how exactly the victim can be named, and the decisions that help. A benign fault needs no answer: silence is
right. A fault without a row is not graded, and the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from harness.diagnosis.answer import Decision, Kind
from harness.log.consequences import duration

PAUSE_S = 5.0  # a shorter pause is benign: no watchdog of a real job fires so soon


class Place(StrEnum):
    """How exactly a victim can be named. `JOB`: no rank or node is to blame, so accusing one accuses an innocent."""

    RANK = "rank"
    NODE = "node"
    FILE = "file"
    JOB = "job"


@dataclass(frozen=True)
class Truth:
    """The right answers about a fault. `either_side`: in a job of two nodes, the other node looks the same."""

    kinds: tuple[Kind, ...]
    place: Place
    decisions: frozenset[Decision]
    benign: bool = False
    either_side: bool = False


def _row(kinds: str, place: Place, decisions: str, **more: bool) -> Truth:
    return Truth(tuple(map(Kind, kinds.split())), place, frozenset(map(Decision, decisions.split())), **more)


_NETWORK = _row("network", Place.NODE, "evict-node ignore")
_STORAGE = _row("storage", Place.JOB, "ignore")
_BROKEN_STORAGE = _row("storage", Place.JOB, "ignore stop")
_PAUSE = _row("hang straggler", Place.RANK, "ignore restart-in-place")
_CRASHED_RANK = _row("crash", Place.RANK, "restart-in-place")

# By the fault's name. `None`: the fault does what its user wrote, so nobody knows the right answer.
TRUTHS: Mapping[str, Truth | None] = {
    "agent_loss": _row("crash", Place.NODE, "restart-elsewhere restart-in-place"),
    "checkpoint_corruption": _row("corruption storage", Place.FILE, "roll-back"),
    "checkpoint_torn_write": _row("crash storage", Place.NODE, "restart-elsewhere"),
    "clock_skew": _row("none", Place.NODE, "ignore", benign=True),
    "data_corruption": _row("bad-data storage", Place.FILE, "ignore restart-in-place"),
    "data_loader_stall": _row("hang bad-data storage straggler", Place.RANK, "ignore restart-in-place"),
    "data_skew": _row("bad-data", Place.RANK, "stop roll-back"),
    "data_starved": _row("storage bad-data", Place.JOB, "ignore"),
    "divergence": _row("bad-data corruption", Place.JOB, "roll-back"),
    "gil_hold": _PAUSE,
    "hang": _row("hang", Place.RANK, "restart-in-place"),
    "memory_leak": _CRASHED_RANK,
    "memory_pressure": _row("none straggler crash", Place.NODE, "ignore", benign=True),
    "nic_bandwidth": _NETWORK,
    "nic_flap": _NETWORK,
    "nic_latency": _NETWORK,
    "nic_loss": _NETWORK,
    "node_loss": _row("crash", Place.NODE, "restart-elsewhere evict-node"),
    "object_store": _STORAGE,
    "oom": _CRASHED_RANK,
    "out_of_memory": _row("gpu crash", Place.RANK, "restart-in-place ignore"),
    "own_code": None,
    "partition": _row("network", Place.NODE, "ignore restart-in-place", either_side=True),
    "preemption": _row("crash", Place.NODE, "restart-elsewhere"),
    "process_exception": _row("crash", Place.RANK, "restart-in-place stop"),
    "rank_kill": _CRASHED_RANK,
    "rendezvous_loss": _row("network crash", Place.JOB, "ignore restart-in-place"),  # the host `control` may be named
    "silent_data_corruption": _row("corruption", Place.RANK, "roll-back evict-node"),
    "start_failure": _CRASHED_RANK,
    "storage_contention": _row("storage", Place.JOB, "ignore", benign=True),  # others may use a disk
    "storage_error": _BROKEN_STORAGE,
    "storage_full": _BROKEN_STORAGE,
    "storage_slow": _STORAGE,
    "straggler": _row("straggler", Place.NODE, "evict-node restart-elsewhere ignore"),
}

# By fault, parameter and its value: the row that holds then.
_VARIANTS: Mapping[tuple[str, str, object], Truth] = {
    ("data_corruption", "kind", "nan_batch"): _row("bad-data", Place.RANK, "ignore roll-back"),
    ("hang", "how", "freeze_node"): _row("hang", Place.NODE, "restart-in-place restart-elsewhere evict-node"),
    ("hang", "how", "freeze_launcher"): _row("hang", Place.NODE, "restart-in-place ignore"),
    ("partition", "cut_off_from", "control"): _row("network", Place.NODE, "ignore restart-in-place"),
    ("preemption", "replacement", "none"): _row("crash", Place.NODE, "restart-elsewhere restart-in-place evict-node"),
}
_PAUSES = ("data_loader_stall", "gil_hold", "hang")


def truth_of(fault: str, parameters: Mapping[str, Any]) -> Truth | None:
    """Returns the right answers about a fault with these parameters; `None` if the fault is not graded."""
    special = (row for (name, key, value), row in _VARIANTS.items() if name == fault and parameters.get(key) == value)
    truth = next(special, TRUTHS.get(fault))
    lasts = duration(parameters.get("duration")) if fault in _PAUSES else None
    return replace(truth, benign=True) if truth and lasts and lasts.s < PAUSE_S else truth
