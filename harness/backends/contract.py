"""Defines the contract of backends: how a plan becomes running nodes, and what can be done to a node (its verbs).

A backend is a folder in `harness/backends/`; the folder's name is its name on the command line. It has two halves:

* `render(workload)` is pure: plan in, native request out (compared whole in a test, printed by `chaos plan --as yaml`).
* `open(request, …)` turns the request into a `Cluster` of `Node`s, which exists until `Cluster.close()`.

A node offers *verbs*. A backend declares the verbs it has on this machine; a fault declares the verbs it
needs; a plan whose faults need more is refused before anything is launched.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import os
import pathlib
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from harness.errors import CannotRunError, FaultError, UsageError
from harness.node.types import (
    Arrivals,
    Connections,
    CpuUse,
    GpuReading,
    Impairment,
    MemoryUse,
    ProcessState,
    RdmaDevices,
    StorageAnswers,
    StorageRule,
)
from harness.plugins import Family

NO_LABELS = "this backend's engine labels no nodes: write workload: {node_labels: {rack0: [0, 1], rack1: [2, 3]}}"


class Verb(enum.StrEnum):
    """The acts that a node may offer, such as a kill. The value is the word in messages and tables."""

    SIGNAL = "signal"  # a signal to one process or all of them
    KILL = "kill"  # everything on the node dies at once
    FREEZE = "freeze"  # everything on the node stops, sockets stay open
    NOTICE = "notice"  # an eviction notice on the node's cloud metadata endpoint
    EVICT = "evict"  # the engine itself reclaims the node, with its own notice and its own deadline
    REPLACE = "replace"  # a new node takes the place of a lost one
    NET_RATE = "network rate"
    NET_DELAY = "network delay"
    NET_LOSS = "network loss"
    NET_LINK = "network link"
    NET_PARTITION = "network partition"
    NET_RESET = "reset connections"
    CPU = "limit cpu"  # frozen and thawed many times a second, or crowded by others
    CPU_QUOTA = "cpu quota"  # a limit the kernel keeps
    MEMORY = "limit memory"  # kept by the kernel, or by a watchdog that kills
    MEMORY_KERNEL = "kernel memory limit"  # with the kernel's own OOM killer
    FILES = "share files"  # the harness and the job see the same files of the run
    HOST = "share the host"  # the nodes run under the kernel of the harness's host, with its page cache and its disk
    STORAGE = "disturb storage"
    CLOCK = "skew clock"
    GPU = "sicken gpus"  # as NVIDIA's management library tells it to processes of the node
    CONTROL = "restart control"  # the control command dies and starts again
    COMMAND = "change command"  # a node that comes later runs another command than the job began with


@dataclass(frozen=True)
class Launch:
    """All commands that a run starts on its nodes, with their environment and folders.

    `command` and `control` may hold the placeholders `{address}` (of the node), `{control}` (address of the control
    host), `{head}` (address of node 0), `{index}` (0-based place of the node in the job), `{incarnation}`, `{run_dir}`,
    `{python}` (the interpreter there that has the harness and its trainer); `{{index}}` is the text `{index}`.
    `control` runs once, beside the nodes, where no eviction reaches it: it holds the rendezvous store. `sources` are
    folders of this machine that the commands read, and that nodes must see by the same path. `mounts` are folders below
    the run's that `Node.disturb_storage` can act on. Operations on those in `recorded` are recorded (local backend
    only). `notice_s` is the longest notice that any fault of the plan gives: an engine with its own grace time must not
    take a node before that.
    """

    command: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    env: Mapping[str, str] = field(default_factory=dict)
    control: tuple[str, ...] | None = None
    mounts: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    notice_s: float = 0.0
    sources: tuple[str, ...] = ()

    def changed(self, command: tuple[str, ...], env: Mapping[str, str]) -> Launch:
        """Returns a copy with another command on nodes, and with these variables added to its own."""
        return replace(self, command=command, env={**self.env, **env})


PLACEHOLDERS = ("address", "control", "head", "index", "incarnation", "python", "run_dir")
# A shell's `${name}` is none. `{{name}}` is how `{name}` is written; any other brace stands for itself.
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{(" + "|".join(PLACEHOLDERS) + r")\}")


def fill_placeholders(command: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns a command's words with each placeholder `{name}` filled from `values`, and `{{name}}` as `{name}`.

    Raises `UsageError` for a placeholder that has no value here (`control` has no `{index}`).
    """

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"{{{match[1]}}}"
        if match[2] not in values:
            allowed = ", ".join(f"{{{name}}}" for name in values)
            raise UsageError(f"{match[0]} is unknown in {list(command)}; choose from: {allowed}")
        return str(values[match[2]])

    return tuple(PLACEHOLDER.sub(value, word) for word in command)


@dataclass(frozen=True)
class Exit:
    """The end of a node's main command, or of the control command (then `node` is `control`).

    `code` is negative if a signal ended the command. A killed node reports -9.
    """

    node: str
    incarnation: int
    code: int


@dataclass(frozen=True)
class Change:
    """A node that the engine has given to the job (`allocated`) or taken from it."""

    node: str
    incarnation: int
    allocated: bool
    reason: str = ""


@dataclass(frozen=True)
class ClockReading:
    """A host's wall clock minus the harness's. The true value is at most the uncertainty away, either way."""

    host: str  # as it calls itself in its events
    offset_ns: int
    uncertainty_ns: int


@dataclass(frozen=True)
class Traffic:
    """The part of a node's network traffic that a disturbance concerns: its direction, and the peers.

    `nodes`: all other nodes, also those that come later. `control`: the host of the harness. `spared` peers are left
    out; only `cut` and `impair` support that.
    """

    direction: Literal["egress", "ingress", "both"] = "both"
    peers: Literal["all", "nodes", "control"] | tuple[Node, ...] = "all"
    spared: tuple[Node, ...] = ()


class Disturbance(abc.ABC):
    """A change of a node, such as a network delay, that lasts until it is healed."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Undoes the disturbance. Can be called again."""

    @abc.abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Returns how much the disturbance did so far (`packets`, `lost`, `damaged`), as far as it is counted."""


class Node(abc.ABC):
    """One host of the job, and the acts on it. A replacement has the same `name` and the next `incarnation`."""

    name: str
    index: int  # its place in the job, from 0
    incarnation: int  # 1 for the first node in that place
    address: str

    @property
    @abc.abstractmethod
    def alive(self) -> bool:
        """Returns True if the node itself exists, even if its command has ended."""

    @abc.abstractmethod
    def pids(self) -> list[int]:
        """Returns the process ids on this node, in the node's own numbers; empty if the node is gone."""

    # Verbs. Each acts before it returns, raises `NodeGone` for a node that is no longer there, and
    # `CannotRunError` where the backend does not have it.
    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        """Signals `pid` (as in `pids`), or every process but the node's init. Returns how many got the signal."""
        raise self._missing(Verb.SIGNAL)

    def kill(self) -> None:
        """Kills everything on the node before it returns. Peers see their connections reset."""
        raise self._missing(Verb.KILL)

    def freeze(self) -> None:
        """Stops all processes on the node. Its connections stay open."""
        raise self._missing(Verb.FREEZE)

    def thaw(self) -> None:
        """Lets all processes continue, even those that a signal has stopped."""
        raise self._missing(Verb.FREEZE)

    def notice(self, provider: str, in_s: float) -> None:
        """Announces on the node's metadata endpoint that the node will be gone in `in_s` seconds.

        `provider` is `ec2`, `gcp` or `azure`.
        """
        raise self._missing(Verb.NOTICE)

    def evict(self, grace_s: float) -> None:
        """Asks the engine to take the node away, after `grace_s` seconds if the engine lets us choose.

        Returns once the engine was asked; `alive` becomes False when the node is taken.
        """
        raise self._missing(Verb.EVICT)

    def notice_seen(self) -> int:
        """Returns how often processes on the node have read the announced notice."""
        raise self._missing(Verb.NOTICE)

    def processes(self) -> list[ProcessState]:
        """Returns the processes of `pids()` in their present state; empty if the node is gone."""
        raise self._missing(Verb.SIGNAL)

    def limit_cpu(self, cpus: float | None) -> None:
        """Limits all processes of the node together to `cpus` CPUs. `None` lifts the limit."""
        raise self._missing(Verb.CPU_QUOTA)

    def throttle(self, share: float | None) -> None:
        """Lets all processes run only for this share of the time (0 to 1), in turns of about 100 ms."""
        raise self._missing(Verb.CPU)

    def crowd(self, kind: str, load: float | None) -> None:
        """Starts processes that compete with the node's own processes for the node's share of the machine.

        `kind` is `cpu`, `memory` (bandwidth) or `gpu`; `load` is how many of them are busy on average.
        """
        raise self._missing(Verb.CPU)

    def cpu_use(self) -> CpuUse:
        """Returns the CPU time that the node used, and that it was denied. Two readings give a rate."""
        raise self._missing(Verb.CPU)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        """Kills processes of the node if it uses more than this memory: the one with the highest OOM score first.

        `keeper` is `kernel`, or `watchdog`, which looks every 10 ms and counts resident anonymous pages, or `auto`: the
        first of these that exists. Returns which. `None` lifts every limit.
        """
        raise self._missing(Verb.MEMORY)

    def memory_use(self) -> MemoryUse:
        """Returns the memory in use on the node, and how many of its processes were killed for lack of memory."""
        raise self._missing(Verb.MEMORY)

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        """Starts a process that takes this much memory of the node and frees it again. Returns how much it got.

        It gets less if it is killed. With `spare`, the doomed process is killed before it, if there is one.
        """
        raise self._missing(Verb.MEMORY)

    def doom(self, pid: int) -> None:
        """Makes this process (numbered as in `pids`) the first to be killed when memory runs out."""
        raise self._missing(Verb.MEMORY)

    def skew_clock(self, offset_s: float) -> None:
        """Shifts the wall clock that processes of the node see, from now on. Other clocks do not change."""
        raise self._missing(Verb.CLOCK)

    def set_gpu_health(self, gpu: int, health: Mapping[str, int]) -> None:
        """Changes what this GPU reports to processes of the node, by the names of `harness.node.gpu_health.FIELDS`;
        empty values end the change. With `xid`, one such error is reported."""
        raise self._missing(Verb.GPU)

    def watch_gpus(self, pid: int | None) -> str | None:
        """Reads the node's GPUs several times a second, as this process (numbered as in `pids`) sees them; `None` ends
        this. Returns the process's CUDA_VISIBLE_DEVICES, or `None` if it has none."""
        raise self._missing(Verb.GPU)

    def gpus(self) -> GpuReading:
        """Returns the newest state of the node's GPUs that `watch_gpus` has read."""
        raise self._missing(Verb.GPU)

    def rdma(self) -> RdmaDevices | None:
        """Returns the node's RDMA devices, or `None` if they cannot be seen. This is no verb: it changes nothing."""
        return None

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        """Limits the traffic to `rate_bits` per second on the wire, separately for each direction."""
        raise self._missing(Verb.NET_RATE)

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        """Delays, loses, reorders or damages packets of the traffic."""
        raise self._missing(Verb.NET_LOSS if impairment.loss_percent or impairment.damage_percent else Verb.NET_DELAY)

    def unplug(self) -> Disturbance:
        """Removes the carrier: packets to the node vanish."""
        raise self._missing(Verb.NET_LINK)

    def cut(self, traffic: Traffic) -> Disturbance:
        """Drops all packets of this traffic, without an error to the sender."""
        raise self._missing(Verb.NET_PARTITION)

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        """Measures the network path to `peer` (`None`: the control host), or the path `back`, by real packets.

        A packet counts as lost if no packet has come for `wait_s` after the last one was sent.
        """
        raise self._missing(Verb.NET_DELAY)

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        """Measures the rate to `peer` (`None`: the control host), or `back`. Returns bits per second.

        With `through`, a rate limit, all traffic that passes it is counted, including the job's own.
        """
        raise self._missing(Verb.NET_RATE)

    def connections(self, pids: Sequence[int]) -> Connections:
        """Returns the TCP connections of these processes (numbered as in `pids`) and of their children, with bytes.

        Without `pids`, or if processes cannot be told apart: those of the whole node, if it has its own network.
        """
        raise self._missing(Verb.NET_DELAY)

    def reset_connections(self, pids: Sequence[int]) -> int:
        """Closes the TCP connections of these processes (numbered as in `pids`), except those to the control host, and
        returns their number. Both ends get an error, and all processes live on. On a node whose processes cannot be
        seen from outside, the connections of all processes are reset."""
        raise self._missing(Verb.NET_RESET)

    def disturb_storage(self, mount: str, rule: StorageRule) -> Disturbance:
        """Makes the node's file operations in one of the workload's `mounts` slow or fail, as the rule says.

        `counts()` tells how many operations `matched`, how many were `tried` on and `failed`; `waits`, the `delayed_ns`
        of all of them, and the `busy_ns` in which at least one waited; `bytes` that passed; for a rule with `power`
        whether it was `cut`, the `lost_bytes` and the `lost_renames`. Of waits, it also tells the `longest_ns`; how
        many operations are `unanswered` now, and how many of their threads are `uninterruptible` (in state D). Power
        comes back with `heal()`, and all waiting operations continue.
        """
        raise self._missing(Verb.STORAGE)

    def try_storage(self, mount: str, rule: StorageRule) -> StorageAnswers:
        """Returns whether the file system over `mount` would delay or fail file operations under such a rule. Nothing
        is written, and no rule counts this."""
        raise self._missing(Verb.STORAGE)

    def _missing(self, verb: Verb) -> UsageError:
        return UsageError(f"node {self.name}: this backend has no verb '{verb.value}'")


class Cluster(abc.ABC):
    """The running nodes of one run. Leaving the `with` block always removes everything.

    An engine that schedules by itself (Slurm, Kubernetes) gives and takes nodes unasked, and may start a lost job again
    as a whole. Such a cluster sets `tells_changes`, and `changes()` returns every node that came or went after `start`.
    `waiting` is True while it is not done with the job, even if there is no node.
    """

    tells_changes = False
    on_this_host = False  # the nodes share the CPUs of the harness's host, and tell their use

    @property
    @abc.abstractmethod
    def nodes(self) -> list[Node]:
        """Returns the newest incarnation of every place in the job, alive or not, in order of `index`."""

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the control command and the workload's command on every node."""

    @abc.abstractmethod
    def replace(self, node: Node) -> Node:
        """Starts a new node, with the node's command, in the place of a dead one."""

    def refuse_replacement(self, node: Node) -> None:
        """Raises `UsageError` unless `node` is the newest in its place, and gone."""
        if self.nodes[node.index] is not node:
            raise UsageError(f"node {node.name}.{node.incarnation} has been replaced already")
        if node.alive:
            raise UsageError(f"node {node.name}.{node.incarnation} is still there; only a dead node is replaced")

    @abc.abstractmethod
    def exits(self) -> list[Exit]:
        """Returns the nodes' and the control command's exits since the last call. Never blocks."""

    @property
    def waiting(self) -> bool:
        """Returns True if the engine may still bring nodes, or has not yet told how the job ended."""
        return False

    def changes(self) -> list[Change]:
        """Returns the nodes that the engine gave or took since the last call, if `tells_changes`. Never blocks."""
        return []

    def clocks(self) -> list[ClockReading]:
        """Returns readings of other hosts' clocks since the last call. Never blocks."""
        return []

    @property
    def control_running(self) -> bool:
        """Returns True if the control command, which runs beside the nodes, is running."""
        raise UsageError("this backend cannot tell whether the control command runs")

    def node_labels(self, key: str) -> list[str]:
        """Returns the value of the engine's label `key` on each node; empty for a node without it. Raises
        `CannotRunError` if the engine does not tell labels."""
        raise CannotRunError(NO_LABELS)

    def kill_control(self) -> None:
        """Kills the control command at once. All data in its memory is lost."""
        raise UsageError("this backend cannot kill the control command")

    def restart_control(self) -> None:
        """Starts the control command again, at the same address and without its earlier data."""
        raise UsageError("this backend cannot start the control command again")

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Starts later nodes with this command, and with these variables in addition to their own."""
        raise UsageError("this backend cannot change the command of a job")

    def give_up(self, node: Node) -> None:
        """Tells the engine that this node gets no replacement, so that the engine stops waiting for one."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Removes all nodes and everything else of this run, and waits until it is gone. Can be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Capability:
    """The acts that work on this machine's nodes. `missing` maps each other act to the reason and the remedy."""

    available: bool
    summary: str
    verbs: frozenset[Verb]
    missing: Mapping[Verb, str] = field(default_factory=dict)
    rdma: RdmaDevices | None = None  # of every node; `None`: each node is asked before the job starts


class Backend(abc.ABC):
    """A backend. Its module's `UNDO(run_id, environment)` undoes a run; `environment` is from `whereabouts`."""

    name: str
    kinds: tuple[str, ...] = ()  # kinds of native requests to choose from
    labels = False  # its engine labels nodes with their places, such as a zone, a rack or a switch
    settings: tuple[str, ...] = ()  # environment variables that choose and configure the engine

    def whereabouts(self) -> dict[str, str]:
        """Returns the environment variables by which the engine is found again from any shell or folder."""
        return {name: os.environ[name] for name in self.settings if name in os.environ}

    @contextlib.contextmanager
    def as_recorded(self, recorded: Mapping[str, str]) -> Iterator[None]:
        """Sets the environment by which a recorded run's engine is found, while the `with` block undoes the run.

        Raises `FaultError` for a variable that is not one of `settings`.
        """
        if foreign := recorded.keys() - set(self.settings):
            raise FaultError(f"environment variables {', '.join(sorted(foreign))} cannot be recorded for undoing")
        before = {name: os.environ.pop(name) for name in self.settings if name in os.environ}
        os.environ.update(recorded)
        try:
            yield
        finally:
            for name in self.settings:
                os.environ.pop(name, None)
            os.environ.update(before)

    def image_digest(self) -> str | None:
        """Returns the digest of the nodes' image, or `None` if there is no image or its digest is unknown."""
        return None

    def sweep(self, dry_run: bool = False) -> list[str]:
        """Removes what dead harnesses left in the engine, in no journal. Returns kind and name of each.

        Removes only things that name the process that made them; nothing if the engine is missing. Raises
        `BackendError` for things that cannot be removed.
        """
        return []

    @abc.abstractmethod
    def probe(self) -> Capability:
        """Finds out which acts on nodes work here, by trying each on a small scale. Leaves nothing behind."""

    def lacks(self) -> Mapping[str, Mapping[Verb, str]]:
        """Maps each mode of the backend, by name, to the acts that it can do on no machine, with the reasons. Pure.

        `probe` tells what this machine lacks in addition. If both give a reason, that of `probe` begins with this one.
        A backend that declares nothing has no column in docs/backends.md.
        """
        return {}

    @abc.abstractmethod
    def render(self, workload: Launch) -> Any:
        """Returns the request that the engine would get for this workload, without facts about this machine. Pure."""

    def render_as(self, workload: Launch, kind: str, run_id: str) -> Any:
        """Returns the engine's request in one of the forms `kinds`, with this run's names. Pure."""
        raise UsageError(f"--as {kind}: backend {self.name} has one kind of request only")

    @abc.abstractmethod
    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> Cluster:
        """Creates the nodes that run `workload`. They run no command before `Cluster.start()`.

        `run_dir` is absolute, is the same path on every node, and holds `events/` and `logs/`. Every process gets
        `workload.env` plus CHAOS_EVENTS, CHAOS_NODE, CHAOS_INCARNATION and CHAOS_RUN_ID.
        """


_FAMILY = Family("backend", "harness.backends", "BACKEND", part="backend")
backend_names = _FAMILY.names
backend_module = _FAMILY.module
load_backend: Callable[[str], Backend] = _FAMILY.load
