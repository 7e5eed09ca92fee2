"""Defines the interface of backends: how a plan becomes running nodes, and which acts (verbs) a node supports.

A backend is a folder in `harness/backends/`; the folder's name is the backend's name on the command line. The two main
methods of a backend are:

* `render(workload)` returns the request to the engine, without side effects. `chaos plan --as yaml` prints the request.
* `open(workload, …)` makes the request, and returns a `Cluster` of `Node`s, which exists until `Cluster.close()`.

A backend declares the verbs that work on this machine, and a fault declares the verbs that it needs. A plan with a
fault that needs a missing verb is refused before anything is launched.
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
    """The acts that the harness may carry out on a node, such as a kill. The value of a verb is its name in messages
    and tables."""

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

    `command` and `control` may contain these placeholders: `{address}` (address of the node), `{control}` (address of
    the control host), `{head}` (address of node 0), `{index}` (0-based place of the node in the job), `{incarnation}`,
    `{run_dir}`, and `{python}` (the Python interpreter on the node that has the harness and its trainer). In commands,
    `{{index}}` stands for the text `{index}`. `control` is the control command (usually the rendezvous store), which
    runs once, on a host that no eviction reaches. `sources` are folders of this machine that the commands read; every
    node must see them under the same path. `mounts` are folders below the run's folder whose storage
    `Node.disturb_storage` can disturb. `recorded` names the mounts whose file operations are recorded (local backend
    only). `notice_s` is the longest eviction notice of the plan's faults; an engine's own grace period must not be
    shorter.
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
        """Returns a copy of this `Launch` with another command for the nodes, and with these additional environment
        variables."""
        return replace(self, command=command, env={**self.env, **env})


PLACEHOLDERS = ("address", "control", "head", "index", "incarnation", "python", "run_dir")
# A shell's `${name}` is none. `{{name}}` is how `{name}` is written; any other brace stands for itself.
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{(" + "|".join(PLACEHOLDERS) + r")\}")


def fill_placeholders(command: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns a command's words with each placeholder `{name}` replaced by its value, and `{{name}}` by the text
    `{name}`.

    Raises `UsageError` for a placeholder without a value; for example, the control command has no `{index}`.
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
    """The end of a node's main command or, if `node` is `control`, of the control command.

    `code` is the exit code, or a negative signal number if a signal ended the command. The command of a killed node has
    the code -9.
    """

    node: str
    incarnation: int
    code: int


@dataclass(frozen=True)
class Change:
    """A change of the job's nodes: the engine gave a node to the job (`allocated`), or took the node away."""

    node: str
    incarnation: int
    allocated: bool
    reason: str = ""


@dataclass(frozen=True)
class ClockReading:
    """The measured difference of a host's wall clock from the harness's wall clock. The true difference is within
    `uncertainty_ns` of the measured `offset_ns`."""

    host: str  # as it calls itself in its events
    offset_ns: int
    uncertainty_ns: int


@dataclass(frozen=True)
class Traffic:
    """The part of a node's network traffic that a disturbance affects: its direction, and the other ends (peers).

    `peers` is `all`, `nodes` (all other nodes, also later ones), `control` (the control host), or certain nodes.
    Traffic with the nodes in `spared` is not affected; only `cut` and `impair` support `spared`.
    """

    direction: Literal["egress", "ingress", "both"] = "both"
    peers: Literal["all", "nodes", "control"] | tuple[Node, ...] = "all"
    spared: tuple[Node, ...] = ()


class Disturbance(abc.ABC):
    """A change of a node, such as a network delay, that lasts until it is healed."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Undoes the disturbance. Repeated calls are safe."""

    @abc.abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Returns counters of the disturbance's effect so far (`packets`, `lost`, `damaged`), as far as the backend
        counts them."""


class Node(abc.ABC):
    """One host of the job, and the acts that the harness can carry out on the host. A node that replaces a lost node
    has the same `name` and the next `incarnation`."""

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
        """Returns this node's process ids, as the node itself numbers them, or an empty list if the node is gone."""

    # Verbs. Each acts before it returns, raises `NodeGone` for a node that is no longer there, and
    # `CannotRunError` where the backend does not have it.
    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        """Sends a signal to the process `pid` (an id from `pids`) or, without `pid`, to every process but the node's
        init. Returns how many processes got the signal."""
        raise self._missing(Verb.SIGNAL)

    def kill(self) -> None:
        """Kills all processes on the node, and returns when they are dead. Other nodes see their connections to this
        node reset."""
        raise self._missing(Verb.KILL)

    def freeze(self) -> None:
        """Stops all processes on the node. The node's connections stay open."""
        raise self._missing(Verb.FREEZE)

    def thaw(self) -> None:
        """Lets all processes of the node continue, even those that a signal has stopped."""
        raise self._missing(Verb.FREEZE)

    def notice(self, provider: str, in_s: float) -> None:
        """Announces on the node's metadata endpoint that the node will be gone in `in_s` seconds.

        `provider` is `ec2`, `gcp` or `azure`.
        """
        raise self._missing(Verb.NOTICE)

    def evict(self, grace_s: float) -> None:
        """Asks the engine to take the node away, after `grace_s` seconds if the engine lets the caller choose.

        Returns when the engine has got the request; `alive` becomes False when the node is gone.
        """
        raise self._missing(Verb.EVICT)

    def notice_seen(self) -> int:
        """Returns how often processes on the node have read the eviction notice that `notice` announced."""
        raise self._missing(Verb.NOTICE)

    def processes(self) -> list[ProcessState]:
        """Returns the present state of each process in `pids()`, or an empty list if the node is gone."""
        raise self._missing(Verb.SIGNAL)

    def limit_cpu(self, cpus: float | None) -> None:
        """Limits all processes of the node together to `cpus` CPUs. `None` lifts the limit."""
        raise self._missing(Verb.CPU_QUOTA)

    def throttle(self, share: float | None) -> None:
        """Lets all processes of the node run only for the fraction `share` (0 to 1) of the time, in turns of about 100
        ms."""
        raise self._missing(Verb.CPU)

    def crowd(self, kind: str, load: float | None) -> None:
        """Starts processes that compete with the node's own processes for the node's share of the machine.

        `kind` is `cpu`, `memory` (bandwidth) or `gpu`; `load` is the average number of busy competing processes.
        """
        raise self._missing(Verb.CPU)

    def cpu_use(self) -> CpuUse:
        """Returns the CPU time that the node's processes used, and the CPU time that limits withheld from them. The
        difference of two results is the use between the two calls."""
        raise self._missing(Verb.CPU)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        """Limits the node's memory: if the node uses more than `limit_bytes`, processes are killed, the one with the
        highest OOM score first.

        `keeper` says who enforces the limit: `kernel`, `watchdog` (a process of the harness, which counts resident
        anonymous pages every 10 ms), or `auto` (`kernel` if possible, else `watchdog`). Returns `kernel` or `watchdog`,
        whichever enforces the limit. If `limit_bytes` is `None`, all memory limits are lifted.
        """
        raise self._missing(Verb.MEMORY)

    def memory_use(self) -> MemoryUse:
        """Returns the memory in use on the node, and how many of its processes were killed for lack of memory."""
        raise self._missing(Verb.MEMORY)

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        """Starts a process that takes `size_bytes` of the node's memory and then frees the memory again. Returns how
        many bytes the process got.

        The result is less than `size_bytes` if the memory-filling process is killed early. With `spare`, if memory runs
        out, a process that `doom` has marked is killed before the memory-filling process.
        """
        raise self._missing(Verb.MEMORY)

    def doom(self, pid: int) -> None:
        """Makes the process `pid` (an id from `pids`) the first to be killed when memory runs out."""
        raise self._missing(Verb.MEMORY)

    def skew_clock(self, offset_s: float) -> None:
        """Shifts the wall clock that processes of the node see, from now on. Clocks other than the wall clock do not
        change."""
        raise self._missing(Verb.CLOCK)

    def set_gpu_health(self, gpu: int, health: Mapping[str, int]) -> None:
        """Changes the figures that the GPU number `gpu` reports to processes of the node. The keys of `health` are
        names from `harness.node.gpu_health.FIELDS`; an empty `health` ends the change. With the key `xid`, the GPU also
        reports one XID error."""
        raise self._missing(Verb.GPU)

    def watch_gpus(self, pid: int | None) -> str | None:
        """Starts to read the node's GPUs several times a second, as the process `pid` (an id from `pids`) sees them. If
        `pid` is `None`, ends the reading. Returns the CUDA_VISIBLE_DEVICES of the process, or `None` if this variable
        is not set."""
        raise self._missing(Verb.GPU)

    def gpus(self) -> GpuReading:
        """Returns the newest state of the node's GPUs that `watch_gpus` has read."""
        raise self._missing(Verb.GPU)

    def rdma(self) -> RdmaDevices | None:
        """Returns the node's RDMA devices, or `None` if they cannot be seen."""
        return None

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        """Limits the given traffic to `rate_bits` bits per second on the wire, separately for each direction."""
        raise self._missing(Verb.NET_RATE)

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        """Delays, loses, reorders or damages packets of the given traffic."""
        raise self._missing(Verb.NET_LOSS if impairment.loss_percent or impairment.damage_percent else Verb.NET_DELAY)

    def unplug(self) -> Disturbance:
        """Cuts the node off the network, like a pulled cable: packets to the node vanish."""
        raise self._missing(Verb.NET_LINK)

    def cut(self, traffic: Traffic) -> Disturbance:
        """Drops all packets of this traffic, without an error to the sender."""
        raise self._missing(Verb.NET_PARTITION)

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        """Measures the network path to `peer` (`None`: the control host) with real packets. With `back`, the packets go
        from the peer to the node.

        The measurement ends when all packets have arrived or, after the last packet was sent, when no packet has
        arrived for `wait_s` seconds. Packets that are missing at the end count as lost.
        """
        raise self._missing(Verb.NET_DELAY)

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        """Measures the data rate from the node to `peer` (`None`: the control host), in bits per second. With `back`,
        measures the rate from the peer to the node.

        If `through` is a rate limit, all traffic that passes this limit is counted, including the job's own traffic.
        """
        raise self._missing(Verb.NET_RATE)

    def connections(self, pids: Sequence[int]) -> Connections:
        """Returns the TCP connections of these processes (numbered as in `pids`) and of their children, with the bytes
        of each connection.

        If `pids` is empty, or if the processes of the node cannot be told apart, returns all connections in the node's
        network namespace.
        """
        raise self._missing(Verb.NET_DELAY)

    def reset_connections(self, pids: Sequence[int]) -> int:
        """Closes the TCP connections of these processes (numbered as in `pids`), except those to the control host, and
        returns the number of closed connections. Both ends of each connection get an error, and no process ends. On a
        node whose processes cannot be seen from outside, the connections of all processes are reset."""
        raise self._missing(Verb.NET_RESET)

    def disturb_storage(self, mount: str, rule: StorageRule) -> Disturbance:
        """Makes file operations of the node in one of the workload's `mounts` slow, or makes them fail, as the rule
        says.

        `counts()` returns how many operations `matched` the rule, how many of these could fail (`tried`), and how many
        `failed`. `waits` is the number of delayed operations, `delayed_ns` the sum of their delays, and `busy_ns` the
        time in which at least one operation waited. `bytes` counts the bytes that a rule with `after_bytes` or
        `rate_bytes` let pass. If the rule simulates a power cut (`power`), `cut` is 1 once the power is cut, and
        `lost_bytes` and `lost_renames` count the lost data. `longest_ns` is the longest delay, `unanswered` the number
        of operations that wait now, and `uninterruptible` the number of their threads in state D. `heal()` ends the
        simulated power cut and lets all waiting operations continue.
        """
        raise self._missing(Verb.STORAGE)

    def try_storage(self, mount: str, rule: StorageRule) -> StorageAnswers:
        """Returns the delays and errors that the active rules equal to `rule` would cause in the file system over
        `mount`. The check writes nothing, and changes no counter of a rule."""
        raise self._missing(Verb.STORAGE)

    def _missing(self, verb: Verb) -> UsageError:
        return UsageError(f"node {self.name}: this backend has no verb '{verb.value}'")


class Cluster(abc.ABC):
    """The running nodes of one run. The end of the `with` block always removes all nodes and everything else of the
    run.

    An engine with its own scheduler (Slurm, Kubernetes) adds and removes nodes on its own, and may restart a lost job
    as a whole. If `tells_changes` is True, `changes()` returns every node that the engine added or removed after
    `start`.
    """

    tells_changes = False
    on_this_host = False  # the nodes share the CPUs of the harness's host, and tell their use

    @property
    @abc.abstractmethod
    def nodes(self) -> list[Node]:
        """Returns the newest node for every place in the job, alive or not, in order of `index`."""

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the control command and the workload's command on every node."""

    @abc.abstractmethod
    def replace(self, node: Node) -> Node:
        """Starts a new node, with the node's command, in the place of a dead one."""

    def refuse_replacement(self, node: Node) -> None:
        """Raises `UsageError` if the node was replaced already, or if the node is still alive."""
        if self.nodes[node.index] is not node:
            raise UsageError(f"node {node.name}.{node.incarnation} has been replaced already")
        if node.alive:
            raise UsageError(f"node {node.name}.{node.incarnation} is still there; only a dead node is replaced")

    @abc.abstractmethod
    def exits(self) -> list[Exit]:
        """Returns the exits of nodes and of the control command since the last call. Never blocks."""

    @property
    def waiting(self) -> bool:
        """Returns True if the engine may still add nodes, or has not yet reported how the job ended."""
        return False

    def changes(self) -> list[Change]:
        """Returns the nodes that the engine added or removed since the last call, if `tells_changes` is True. Never
        blocks."""
        return []

    def clocks(self) -> list[ClockReading]:
        """Returns readings of other hosts' clocks since the last call. Never blocks."""
        return []

    @property
    def control_running(self) -> bool:
        """Returns True if the control command, which runs beside the nodes, is running."""
        raise UsageError("this backend cannot tell whether the control command runs")

    def node_labels(self, key: str) -> list[str]:
        """Returns the value of each node's label `key` in the engine (such as Kubernetes), or "" for a node without
        this label. Raises `CannotRunError` if the engine has no labels of nodes, or if the labels cannot be read."""
        raise CannotRunError(NO_LABELS)

    def kill_control(self) -> None:
        """Kills the control command at once. All data in the memory of the control command is lost."""
        raise UsageError("this backend cannot kill the control command")

    def restart_control(self) -> None:
        """Starts the control command again, at the same address and without the data that it held before."""
        raise UsageError("this backend cannot start the control command again")

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Starts later nodes with this command, and with these environment variables in addition to their own."""
        raise UsageError("this backend cannot change the command of a job")

    def give_up(self, node: Node) -> None:
        """Marks a lost node as not to be replaced, so that the cluster stops waiting for a replacement."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Removes everything that belongs to this run, and waits until the removal is done. Repeated calls are safe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Capability:
    """The acts (verbs) that a backend supports on this machine. `missing` maps every act that does not work here to the
    reason and the remedy."""

    available: bool
    summary: str
    verbs: frozenset[Verb]
    missing: Mapping[Verb, str] = field(default_factory=dict)
    rdma: RdmaDevices | None = None  # of every node; `None`: each node is asked before the job starts


class Backend(abc.ABC):
    """The interface that every backend implements. The backend's module has a function `UNDO(run_id, environment)`,
    which undoes a run; `environment` is the result of `whereabouts`."""

    name: str
    kinds: tuple[str, ...] = ()  # kinds of native requests to choose from
    labels = False  # its engine labels nodes with their places, such as a zone, a rack or a switch
    settings: tuple[str, ...] = ()  # environment variables that choose and configure the engine

    def whereabouts(self) -> dict[str, str]:
        """Returns the environment variables by which another process finds the same engine, from any shell or
        folder."""
        return {name: os.environ[name] for name in self.settings if name in os.environ}

    @contextlib.contextmanager
    def as_recorded(self, recorded: Mapping[str, str]) -> Iterator[None]:
        """Sets the recorded environment variables of a run's engine during the `with` block, in which the run is
        undone.

        Raises `FaultError` if a recorded variable is not among the backend's `settings`.
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
        """Removes objects, such as containers, that dead harness processes left in the engine and that no undo journal
        lists. Returns the kind and the name of each removed object or, with `dry_run`, of each object to remove.

        Only objects whose name says which process made them are removed. If the engine is missing, removes nothing.
        Raises `BackendError` if an object cannot be removed.
        """
        return []

    @abc.abstractmethod
    def probe(self) -> Capability:
        """Finds out which acts on nodes work here, by trying each on a small scale. All test objects are removed
        again."""

    def lacks(self) -> Mapping[str, Mapping[Verb, str]]:
        """Maps the name of each mode of the backend (such as `local, root`) to the acts that never work in this mode,
        on any machine, with the reasons. Has no side effects.

        Unlike `lacks`, `probe` also returns the acts that fail only on this machine. If `probe` and `lacks` both give a
        reason for an act, the reason from `probe` begins with the reason from `lacks`. A backend whose `lacks` returns
        nothing has no column in docs/backends.md.
        """
        return {}

    @abc.abstractmethod
    def render(self, workload: Launch) -> Any:
        """Returns the request that the engine would get for this workload, without details of this machine. Has no side
        effects."""

    def render_as(self, workload: Launch, kind: str, run_id: str) -> Any:
        """Returns the engine's request of the given `kind`, such as `jobset` for Kubernetes, with the names that this
        run would use. Has no side effects."""
        raise UsageError(f"--as {kind}: backend {self.name} has one kind of request only")

    @abc.abstractmethod
    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> Cluster:
        """Creates the nodes that run `workload`. The nodes run no command before `Cluster.start()`.

        `run_dir` is absolute, is the same path on every node, and holds `events/` and `logs/`. Every process gets
        `workload.env` plus CHAOS_EVENTS, CHAOS_NODE, CHAOS_INCARNATION and CHAOS_RUN_ID.
        """


_FAMILY = Family("backend", "harness.backends", "BACKEND", part="backend")
backend_names = _FAMILY.names
backend_module = _FAMILY.module
load_backend: Callable[[str], Backend] = _FAMILY.load
