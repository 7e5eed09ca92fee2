"""Defines the data that the harness and a node exchange: arguments and results of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ProcessState:
    """A process of a node. `state` is the process's letter in /proc (R running, S sleeping, T stopped). `parent` is 0
    if the parent process is unknown."""

    pid: int
    state: str
    cpu_ns: int
    parent: int = 0


@dataclass(frozen=True)
class CpuUse:
    """The CPU time in ns that the node's living processes used, and the time in ns for which the node was throttled."""

    used_ns: int
    throttled_ns: int
    at_ns: int


@dataclass(frozen=True)
class MemoryUse:
    """The bytes of a node's memory that are freed only when processes end, and the number of processes that were killed
    for lack of memory."""

    used_bytes: int
    kills: int


@dataclass(frozen=True)
class GpuReading:
    """The state of a node's GPUs, as NVIDIA's management library (NVML) reports it to a process on the node.

    `devices` holds the figures of each GPU, by the names of `harness.node.gpu_health.FIELDS`, or the `error` of a GPU
    that is lost. `xids` holds the GPU index and the Xid number of each error since the watch began. `ours` is True if
    the harness simulates the library.
    """

    devices: list[dict[str, Any]]
    xids: list[list[int]]
    ours: bool
    age_s: float
    error: str  # why there are no answers; empty: there are, or none came yet


@dataclass(frozen=True)
class Impairment:
    """A disturbance of packets on their way: delay, loss, reordering or damage.

    Delays vary slowly within `delay_s ± jitter_s`, as in a queue, so that packets keep their order. `reorder_percent`
    of the packets pass without delay, and so overtake others. Losses come in bursts of `burst` packets on average.
    Damage flips one bit of a packet, which the receiver's checksum detects.
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
    """The numbers of packets that a measurement sent and received. `late` packets arrived out of order, `damaged`
    packets with a wrong checksum."""

    sent: int
    received: int
    late: int
    damaged: int
    delays_s: tuple[float, ...]


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a node. `cookie` is the kernel's unique id of the socket. `sent` and `received` are payload
    bytes since the connection began, retransmissions included."""

    cookie: int
    local: str
    remote: str
    sent: int
    received: int


@dataclass(frozen=True)
class Connections:
    """The TCP connections of a node: only those of the given processes if `of_processes` is True, else all.

    `rdma_bytes` counts the bytes of all RDMA ports of the host, or is `None` if the host has no RDMA ports.
    """

    each: tuple[Connection, ...]
    of_processes: bool
    rdma_bytes: int | None = None


@dataclass(frozen=True)
class RdmaDevices:
    """A host's RDMA devices that have an active port. `gpus` is True if the host's kernel has a GPU driver."""

    devices: tuple[str, ...] = ()
    gpus: bool = False


@dataclass(frozen=True)
class StorageRule:
    """A fault in a node's storage: which file operations, on which files, wait or fail.

    `operations` are some of `STORAGE_OPERATIONS`; `pattern` is a shell pattern for file paths below the mount. The
    first `after_bytes` bytes written to matching files are stored; a write that exceeds this limit is cut at the limit.
    After `after_bytes` bytes, a `share` of the operations, at most `times`, fail with `error`, the name of an errno.
    `seed` chooses the operations that fail. Until the rule ends, every operation waits `delay_s` seconds, and reads and
    writes together are limited to `rate_bytes` per second.

    With `power`, the node's storage loses power: file operations get no answer, and data that was not durable is lost.
    The value of `power` says what is lost: `prefix` loses all data after `after_bytes`; `reordered` loses random pages
    since the last fsync; `fsync_lied` loses all pages since the rule began, even after an fsync; `rename_lost` loses
    the first rename since the rule began.

    With `hang`, file operations get no answer until the rule ends, and are then carried out.
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
    """The answers that a file system would give to a node's file operations: how many operations were `tried` and
    `refused`, and the longest delay in s."""

    tried: int
    refused: int
    delay_s: float


STORAGE_OPERATIONS = ("open", "create", "read", "write", "fsync", "rename", "unlink", "mkdir", "lookup", "list")
