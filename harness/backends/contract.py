"""The Backend contract: how a plan becomes running nodes, and the verbs of a node.

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
    """The verbs of nodes. The value is the word used in messages and tables."""

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
    """The commands for every node, with nothing left to decide.

    `command` and `control` may hold the placeholders `{address}` (of the node), `{control}` (address of the
    control host), `{head}` (address of node 0), `{index}` (0-based place of the node in the job), `{incarnation}`,
    `{run_dir}`, `{python}` (the interpreter there that has the harness and its trainer); `{{index}}` is the text
    `{index}`.
    `control` runs once, beside the nodes, where no eviction reaches: it holds the rendezvous store.
    `sources` are folders of this machine that the commands read, and that nodes must see by the same path.
    `mounts` are folders below the run's that `Node.disturb_storage` can act on; operations on those of `recorded` are
    recorded (local backend only). `notice_s` is the longest notice that
    any fault of the plan gives: an engine that has a grace time of its own must not take a node before that.
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
        """Returns it with another command on nodes, and these variables beside its own."""
        return replace(self, command=command, env={**self.env, **env})


PLACEHOLDERS = ("address", "control", "head", "index", "incarnation", "python", "run_dir")
# A shell's `${name}` is none. `{{name}}` is how `{name}` is written; any other brace stands for itself.
PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{(" + "|".join(PLACEHOLDERS) + r")\}")


def fill_placeholders(command: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `command` with each `{name}` of `PLACEHOLDERS` replaced, and `{{name}}` by `{name}`.

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
    """The end of a node's main command (or of the control process: `node` is `control`).

    `code` is negative when a signal ended it. A killed node reports -9.
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
    """A host's wall clock minus the harness's; the truth lies within the uncertainty, either way."""

    host: str  # as it calls itself in its events
    offset_ns: int
    uncertainty_ns: int


@dataclass(frozen=True)
class Traffic:
    """Selects part of a node's traffic: a direction, and the peers at the other end.

    `nodes`: all other nodes, also those that come later. `control`: the host of the harness. `spared` peers are left
    out; only `cut` and `impair` support that.
    """

    direction: Literal["egress", "ingress", "both"] = "both"
    peers: Literal["all", "nodes", "control"] | tuple[Node, ...] = "all"
    spared: tuple[Node, ...] = ()


class Disturbance(abc.ABC):
    """A change of a node that acts until it is healed."""

    @abc.abstractmethod
    def heal(self) -> None:
        """Restores the state before. Idempotent."""

    @abc.abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Returns its effects so far (`packets`, `lost`, `damaged`), if they are counted."""


class Node(abc.ABC):
    """One host of the job. A replacement is a new `Node` with the same `name` and the next `incarnation`."""

    name: str
    index: int  # its place in the job, from 0
    incarnation: int  # 1 for the first node in that place
    address: str

    @property
    @abc.abstractmethod
    def alive(self) -> bool:
        """Tells whether the node itself is there (its command may have ended)."""

    @abc.abstractmethod
    def pids(self) -> list[int]:
        """Process ids on this node, as the node itself numbers them. Empty when it is gone."""

    # Verbs. Each acts before it returns, raises `NodeGone` for a node that is no longer there, and
    # `CannotRunError` where the backend does not have it.
    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        """Sends to `pid` (numbered as in `pids`), or to every process but the node's init; returns how many got it."""
        raise self._missing(Verb.SIGNAL)

    def kill(self) -> None:
        """Kills everything on the node before it returns; peers see their connections reset."""
        raise self._missing(Verb.KILL)

    def freeze(self) -> None:
        """Stops all that runs on the node; its connections stay open."""
        raise self._missing(Verb.FREEZE)

    def thaw(self) -> None:
        """Lets all processes go on, also those that a signal has stopped."""
        raise self._missing(Verb.FREEZE)

    def notice(self, provider: str, in_s: float) -> None:
        """Announces on the node's metadata endpoint that it goes away in `in_s` seconds.

        `provider` is `ec2`, `gcp` or `azure`.
        """
        raise self._missing(Verb.NOTICE)

    def evict(self, grace_s: float) -> None:
        """Asks the engine to reclaim the node, with `grace_s` seconds for its processes if the engine lets us choose.

        Returns once the engine was asked; `alive` turns false when the node is taken.
        """
        raise self._missing(Verb.EVICT)

    def notice_seen(self) -> int:
        """Returns how often processes on the node have read the announced notice."""
        raise self._missing(Verb.NOTICE)

    def processes(self) -> list[ProcessState]:
        """Returns the processes of `pids()` in their present state; empty when the node is gone."""
        raise self._missing(Verb.SIGNAL)

    def limit_cpu(self, cpus: float | None) -> None:
        """Limits all processes of the node together to `cpus` CPUs; `None`: as before."""
        raise self._missing(Verb.CPU_QUOTA)

    def throttle(self, share: float | None) -> None:
        """Lets everything on the node run only for this share of the time (0 to 1), in turns of about 100 ms."""
        raise self._missing(Verb.CPU)

    def crowd(self, kind: str, load: float | None) -> None:
        """Strangers compete with the node's processes, on the node's own share of the machine.

        `kind` is `cpu`, `memory` (bandwidth) or `gpu`; `load` is how many of them are busy on average.
        """
        raise self._missing(Verb.CPU)

    def cpu_use(self) -> CpuUse:
        """Returns the CPU time that the node has used and been denied so far. Two readings make a rate."""
        raise self._missing(Verb.CPU)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        """Kills a process of the node beyond this much memory, the one with the highest OOM score first.

        `keeper` is `kernel`, or `watchdog`, which looks every 10 ms and counts resident anonymous pages, or `auto`:
        the first there is. Returns which. `None` lifts every limit.
        """
        raise self._missing(Verb.MEMORY)

    def memory_use(self) -> MemoryUse:
        """Returns the memory in use on the node, and how many of its processes were killed for lack of memory."""
        raise self._missing(Verb.MEMORY)

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        """Starts a process on the node that takes this much memory and gives it back; returns how much it got.

        It gets less when it is killed for it. With `spare` only after the one that is doomed, if there is one.
        """
        raise self._missing(Verb.MEMORY)

    def doom(self, pid: int) -> None:
        """Makes this process (numbered as in `pids`) the first to be killed when memory runs out."""
        raise self._missing(Verb.MEMORY)

    def skew_clock(self, offset_s: float) -> None:
        """Shifts the wall clock that processes of the node see, from now on; other clocks stay."""
        raise self._missing(Verb.CLOCK)

    def set_gpu_health(self, gpu: int, health: Mapping[str, int]) -> None:
        """Changes what processes of the node are told about this GPU, by the names of `harness.node.gpu_health.FIELDS`;
        empty: nothing is changed any more. With `xid`, one such error is told."""
        raise self._missing(Verb.GPU)

    def watch_gpus(self, pid: int | None) -> str | None:
        """Asks for the GPUs several times a second as this process (numbered as in `pids`) would, until another is
        named; `None`: ends it. Returns the process's CUDA_VISIBLE_DEVICES; `None`: it has none."""
        raise self._missing(Verb.GPU)

    def gpus(self) -> GpuReading:
        """Returns the newest answers to `watch_gpus`."""
        raise self._missing(Verb.GPU)

    def rdma(self) -> RdmaDevices | None:
        """Returns the node's RDMA devices; `None` where it cannot be looked at. It is no verb: nothing is done."""
        return None

    def limit_rate(self, rate_bits: int, traffic: Traffic) -> Disturbance:
        """Limits the traffic to `rate_bits` a second on the wire, each direction by itself."""
        raise self._missing(Verb.NET_RATE)

    def impair(self, impairment: Impairment, traffic: Traffic) -> Disturbance:
        """Delays, loses, reorders or damages packets of the traffic."""
        raise self._missing(Verb.NET_LOSS if impairment.loss_percent or impairment.damage_percent else Verb.NET_DELAY)

    def unplug(self) -> Disturbance:
        """Takes the carrier away; packets to the node vanish."""
        raise self._missing(Verb.NET_LINK)

    def cut(self, traffic: Traffic) -> Disturbance:
        """Drops the traffic without a word to the sender."""
        raise self._missing(Verb.NET_PARTITION)

    def send_packets(
        self, peer: Node | None, count: int, interval_s: float, back: bool = False, wait_s: float = 0.2
    ) -> Arrivals:
        """Measures the path to `peer` (`None`: the control host) one way, or the way `back`, with real packets.

        A packet counts as lost when none has come for `wait_s` after the last was sent.
        """
        raise self._missing(Verb.NET_DELAY)

    def fill_path(
        self, peer: Node | None, seconds: float, back: bool = False, through: Disturbance | None = None
    ) -> float:
        """Sends to `peer` (`None`: the control host), or `back`, as fast as it goes; returns bits a second.

        With `through`, a rate limit, all that passes it is counted, the job's own traffic included.
        """
        raise self._missing(Verb.NET_RATE)

    def connections(self, pids: Sequence[int]) -> Connections:
        """Returns TCP connections of these processes (numbered as in `pids`) and their children, with their bytes.

        Without `pids`, or if its processes cannot be told apart, those of the whole node with a network of its own.
        """
        raise self._missing(Verb.NET_DELAY)

    def reset_connections(self, pids: Sequence[int]) -> int:
        """Closes the TCP connections of these processes (numbered as in `pids`) to everyone but the control host, and
        returns how many. Both ends hear of it, and all processes live on. A node whose processes cannot be seen from
        outside resets those of all its processes."""
        raise self._missing(Verb.NET_RESET)

    def disturb_storage(self, mount: str, rule: StorageRule) -> Disturbance:
        """Applies the rule to the node's operations in `mount`, one of the workload's.

        `counts()` tells how many operations `matched`, how many were `tried` on and `failed`; `waits`, the `delayed_ns`
        of all of them, and the `busy_ns` in which at least one waited; `bytes` that passed; for a rule with `power`
        whether it was `cut`, the `lost_bytes` and the `lost_renames`. Of waits, it also tells the `longest_ns`; how
        many operations are `unanswered` now, and how many of their threads are `uninterruptible` (in state D). Power
        comes back with `heal()`, and all that waited goes on.
        """
        raise self._missing(Verb.STORAGE)

    def try_storage(self, mount: str, rule: StorageRule) -> StorageAnswers:
        """Returns the answers of the file system over `mount` to each operation of such a rule, tried once. Nothing is
        written, and no rule counts it."""
        raise self._missing(Verb.STORAGE)

    def _missing(self, verb: Verb) -> UsageError:
        return UsageError(f"node {self.name}: this backend has no verb '{verb.value}'")


class Cluster(abc.ABC):
    """The running nodes of one run. Leaving the `with` block takes everything down, whatever happened.

    An engine that schedules by itself (Slurm, Kubernetes) gives and takes nodes unasked, and may start a lost job
    again as a whole. Such a cluster sets `tells_changes`, and reports in `changes()` every node that came or went
    after `start`; `waiting` tells that it is not done with the job yet, though no node may be there.
    """

    tells_changes = False
    on_this_host = False  # the nodes share the CPUs of the harness's host, and tell their use

    @property
    @abc.abstractmethod
    def nodes(self) -> list[Node]:
        """The newest incarnation of every place in the job, alive or not, in order of `index`."""

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the control command and the workload's command on every node."""

    @abc.abstractmethod
    def replace(self, node: Node) -> Node:
        """Replaces a dead node by a fresh one, and starts its command."""

    def refuse_replacement(self, node: Node) -> None:
        """Raises `UsageError` unless `node` is the newest of its place, and gone."""
        if self.nodes[node.index] is not node:
            raise UsageError(f"node {node.name}.{node.incarnation} has been replaced already")
        if node.alive:
            raise UsageError(f"node {node.name}.{node.incarnation} is still there; only a dead node is replaced")

    @abc.abstractmethod
    def exits(self) -> list[Exit]:
        """Ends of main commands since the last call. Never blocks."""

    @property
    def waiting(self) -> bool:
        """Tells whether the engine may still bring nodes, or has not yet said how the job ended."""
        return False

    def changes(self) -> list[Change]:
        """Nodes that came or went since the last call, if `tells_changes`. Never blocks."""
        return []

    def clocks(self) -> list[ClockReading]:
        """Clocks of hosts other than this machine, as measured since the last call. Never blocks."""
        return []

    @property
    def control_running(self) -> bool:
        """Tells whether the control command is running."""
        raise UsageError("this backend cannot tell whether the control command runs")

    def node_labels(self, key: str) -> list[str]:
        """Returns the value of the engine's label `key` for each of `nodes`; empty for a node without it. Raises
        `CannotRunError` where the engine does not tell."""
        raise CannotRunError(NO_LABELS)

    def kill_control(self) -> None:
        """Kills the control command at once; everything in its memory is lost."""
        raise UsageError("this backend cannot kill the control command")

    def restart_control(self) -> None:
        """Starts the control command again, empty, at the same address."""
        raise UsageError("this backend cannot start the control command again")

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        """Starts nodes that come from now on with this command, and with these variables beside those it has."""
        raise UsageError("this backend cannot change the command of a job")

    def give_up(self, node: Node) -> None:
        """Says that this node gets no replacement: an engine that holds the job for one starts it without."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Takes everything down and waits until it is gone. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Capability:
    """The abilities of a backend on this machine. `missing` gives for each absent verb the reason and the remedy."""

    available: bool
    summary: str
    verbs: frozenset[Verb]
    missing: Mapping[Verb, str] = field(default_factory=dict)
    rdma: RdmaDevices | None = None  # of every node; `None`: each node is asked before the job starts


class Backend(abc.ABC):
    """A backend. `UNDO(run_id, environment)` of its module undoes a run; `environment` is from `whereabouts`."""

    name: str
    kinds: tuple[str, ...] = ()  # kinds of native requests to choose from
    labels = False  # its engine labels nodes with their places, such as a zone, a rack or a switch
    settings: tuple[str, ...] = ()  # environment variables that choose and configure the engine

    def whereabouts(self) -> dict[str, str]:
        """The values of `settings` by which the engine is found again, also from another shell or another folder."""
        return {name: os.environ[name] for name in self.settings if name in os.environ}

    @contextlib.contextmanager
    def as_recorded(self, recorded: Mapping[str, str]) -> Iterator[None]:
        """Returns the environment in which a run was made, as far as `settings` go, to undo it from anywhere.

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
        """Returns the digest of the nodes' image; `None` if there is none, or if it is not known."""
        return None

    def sweep(self, dry_run: bool = False) -> list[str]:
        """Removes things of dead harnesses that no journal names, as from killed probes. Returns kind and name of each.

        Touches only what names the process that made it. Nothing to do where the engine is not there.
        Raises `BackendError` for what cannot be removed.
        """
        return []

    @abc.abstractmethod
    def probe(self) -> Capability:
        """Finds out by doing the real thing on a small scale; leaves nothing behind."""

    def lacks(self) -> Mapping[str, Mapping[Verb, str]]:
        """Maps each way to run, by name, to the verbs that it has on no machine, with the reasons. Pure.

        What this machine takes away besides is told by `probe`, whose reasons begin with these where both say one.
        A backend that declares nothing has no column in docs/backends.md.
        """
        return {}

    @abc.abstractmethod
    def render(self, workload: Launch) -> Any:
        """Returns the native request as plain data; pure: nothing of this machine is in it."""

    def render_as(self, workload: Launch, kind: str, run_id: str) -> Any:
        """Returns the same request as one of `kinds`, with this run's names. Pure."""
        raise UsageError(f"--as {kind}: backend {self.name} has one kind of request only")

    @abc.abstractmethod
    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> Cluster:
        """Creates the nodes of `workload`; nothing runs on them until `Cluster.start()`.

        `run_dir` is absolute, is the same path on every node, and holds `events/` and `logs/`.
        Every process gets `workload.env` plus CHAOS_EVENTS, CHAOS_NODE, CHAOS_INCARNATION and CHAOS_RUN_ID.
        """


_FAMILY = Family("backend", "harness.backends", "BACKEND", part="backend")
backend_names = _FAMILY.names
backend_module = _FAMILY.module
load_backend: Callable[[str], Backend] = _FAMILY.load
