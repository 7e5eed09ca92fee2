"""The data on the wire between the harness and a node: arguments and measurements of verbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ProcessState:
    """A process. `state`: letter of /proc (R running, S sleeping, T stopped). `parent`: 0 if unknown."""

    pid: int
    state: str
    cpu_ns: int
    parent: int = 0


@dataclass(frozen=True)
class CpuUse:
    """CPU time used by the node's living processes, and the time for which the node was kept from running."""

    used_ns: int
    throttled_ns: int
    at_ns: int


@dataclass(frozen=True)
class MemoryUse:
    """Memory in use that cannot be freed but by killing, and how many processes have been killed for lack of memory."""

    used_bytes: int
    kills: int


@dataclass(frozen=True)
class GpuReading:
    """The answers of NVIDIA's management library to a process of the node.

    `devices`: figures of each GPU, by the names of `harness.node.gpu_health.FIELDS`; a GPU that is not reached has its
    `error` instead. `xids`: GPU and number of each error since the watch began. `ours`: the library is the harness's.
    """

    devices: list[dict[str, Any]]
    xids: list[list[int]]
    ours: bool
    age_s: float
    error: str  # why there are no answers; empty: there are, or none came yet


@dataclass(frozen=True)
class Impairment:
    """The disturbance of packets on their way.

    Delays wander within `delay_s ± jitter_s`, as that of a queue does: so slowly that packets keep their order and the
    mean is `delay_s` however dense they are. `reorder_percent` of them go ahead without delay. Losses come in runs of
    `burst` packets on average; damage flips a bit, which the receiver's checksum sees.
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
    """The fate of packets sent to measure a path; `late` were overtaken, `damaged` failed their checksum."""

    sent: int
    received: int
    late: int
    damaged: int
    delays_s: tuple[float, ...]


@dataclass(frozen=True)
class Connection:
    """A TCP connection. `cookie` is a number of the kernel that no other socket gets; payload bytes since it began,
    retransmissions included."""

    cookie: int
    local: str
    remote: str
    sent: int
    received: int


@dataclass(frozen=True)
class Connections:
    """Connections. `of_processes`: of the given processes only; else of everything in the node's own network.

    `rdma_bytes`: bytes through all RDMA ports of the host; `None` if there are none.
    """

    each: tuple[Connection, ...]
    of_processes: bool
    rdma_bytes: int | None = None


@dataclass(frozen=True)
class RdmaDevices:
    """The RDMA devices of a host that have an active port, and whether its kernel has a driver of `gpus`."""

    devices: tuple[str, ...] = ()
    gpus: bool = False


@dataclass(frozen=True)
class StorageRule:
    """A disturbance of a node's file operations in one mount: of these kinds, on files of this pattern.

    `operations` are of `STORAGE_OPERATIONS`; `pattern` is matched as by a shell against the path below the mount.
    The first `after_bytes` written there pass untouched, and the write that goes beyond them is cut exactly there.
    From then on at most `times` operations (a `share` of them, chosen by `seed`) fail with `error`, the name of an
    errno. Until the rule ends every operation waits `delay_s`, and reads and writes keep to `rate_bytes` a second.

    With `power`, the node's storage loses power instead of failing: operations stop being answered, and what was not
    durable is lost. `prefix`: everything after the cut. `reordered`: any pages since the last fsync. `fsync_lied`: all
    pages since the rule began, fsynced or not. `rename_lost`: the first rename there since the rule began.

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
    """The file system's answers to a node's operations of several kinds: refusals and delays."""

    tried: int
    refused: int
    delay_s: float


STORAGE_OPERATIONS = ("open", "create", "read", "write", "fsync", "rename", "unlink", "mkdir", "lookup", "list")
