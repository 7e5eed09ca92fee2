"""Defines the data exchanged between the harness and a node: arguments and results of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ProcessState:
    """A process of a node. `state`: its letter in /proc (R running, S sleeping, T stopped); `parent`: 0 if unknown."""

    pid: int
    state: str
    cpu_ns: int
    parent: int = 0


@dataclass(frozen=True)
class CpuUse:
    """The CPU time that the node's living processes used, and the time for which the node was throttled."""

    used_ns: int
    throttled_ns: int
    at_ns: int


@dataclass(frozen=True)
class MemoryUse:
    """The bytes of a node's memory that only the end of processes can free, and how many were killed for memory."""

    used_bytes: int
    kills: int


@dataclass(frozen=True)
class GpuReading:
    """The state of a node's GPUs, as NVIDIA's management library (NVML) reports it to a process on the node.

    `devices` holds the figures of each GPU, by the names of `harness.node.gpu_health.FIELDS`, or the `error` of a GPU
    that is lost. `xids`: GPU index and Xid code of each error since the watch began. `ours`: the harness supplied NVML.
    """

    devices: list[dict[str, Any]]
    xids: list[list[int]]
    ours: bool
    age_s: float
    error: str  # why there are no answers; empty: there are, or none came yet


@dataclass(frozen=True)
class Impairment:
    """A disturbance of packets on their way: delay, loss, reordering or damage.

    Delays vary within `delay_s ± jitter_s`, but as slowly as in a queue: packets keep their order, and the mean is
    `delay_s` at any packet rate. `reorder_percent` of the packets pass without delay. Losses come in bursts of `burst`
    packets on average. Damage flips a bit, which the receiver's checksum detects.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    reorder_percent: float = 0.0
    loss_percent: float = 0.0
    burst: float = 1.0
    damage_percent: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Arrivals:
    """How many packets of a measurement arrived: `late` ones out of order, `damaged` ones with a wrong checksum."""

    sent: int
    received: int
    late: int
    damaged: int
    delays_s: tuple[float, ...]


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a node, with its byte counts. `cookie` is the kernel's unique id of the socket. `sent` and
    `received` are payload bytes since the connection began, retransmissions included."""

    cookie: int
    local: str
    remote: str
    sent: int
    received: int


@dataclass(frozen=True)
class Connections:
    """The TCP connections of a node: if `of_processes`, only those of the given processes, else all.

    `rdma_bytes` counts the bytes of all RDMA ports of the host; `None` if the host has no such ports.
    """

    each: tuple[Connection, ...]
    of_processes: bool
    rdma_bytes: int | None = None


@dataclass(frozen=True)
class RdmaDevices:
    """A host's RDMA devices with an active port, and in `gpus` whether its kernel has a GPU driver."""

    devices: tuple[str, ...] = ()
    gpus: bool = False


@dataclass(frozen=True)
class StorageRule:
    """A rule for a node's disturbed file operations: which ones, on which files, and whether they wait or fail.

    `operations` are some of `STORAGE_OPERATIONS`; `pattern` is a shell pattern for the path below the mount. The first
    `after_bytes` bytes written to matching files pass; the write that exceeds this limit is cut at the limit. Beyond
    the limit, at most `times` operations (a `share` of them, chosen by `seed`) fail with `error`, the name of an errno.
    Until the rule ends, every operation waits `delay_s`, and reads and writes keep to `rate_bytes` per second.

    With `power`, the node's storage loses power: file operations get no answer, and data that was not durable is lost.
    `power` says what is lost: `prefix`, all data after `after_bytes`; `reordered`, any pages since the last fsync;
    `fsync_lied`, all pages since the rule began, fsynced or not; `rename_lost`, the first rename since the rule began.

    With `hang`, operations are accepted and not answered until the rule ends; then they are carried out.
    """

    pattern: str = "*"
    operations: tuple[str, ...] = ("write",)
    error: str = ""
    after_bytes: int = 0
    times: int = 0  # 0: no limit
    share: float = 1.0
    delay_s: float = 0.0
    rate_bytes: float = 0.0  # 0: no limit
    power: Literal["", "prefix", "reordered", "fsync_lied", "rename_lost"] = ""
    seed: int = 0
    hang: bool = False


@dataclass(frozen=True)
class StorageAnswers:
    """How a file system would answer a node's operations: how many are `tried` and `refused`, and the longest delay."""

    tried: int
    refused: int
    delay_s: float


STORAGE_OPERATIONS = ("open", "create", "read", "write", "fsync", "rename", "unlink", "mkdir", "lookup", "list")
