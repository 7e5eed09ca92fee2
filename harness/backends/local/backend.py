"""The local backend: every node is a virtual host on this machine, and no node outlives the harness.

For root, or for a user who may create namespaces, a node has its own process table, network address, host name and
mounts. If the kernel refuses namespaces, a node is a process tree with a loopback address, and faults that need
namespaces cannot be injected. `CHAOS_LOCAL_MODE` (root, user or plain) selects how nodes are isolated.
"""

import contextlib
import os
import pathlib
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Any

from harness.backends import delivery, network_calls, run_folder, storage_calls
from harness.backends.cluster_base import TellingCluster
from harness.backends.contract import Backend, Capability, Exit, Launch, Node, Verb, fill_placeholders
from harness.backends.local import client
from harness.backends.network_calls import NetworkCaller, NetworkedNode
from harness.backends.node_base import refused_libraries
from harness.backends.storage_calls import StoringNode
from harness.errors import BackendError, CannotRunError, UsageError, each
from harness.node import boot, cgroups, kernel_errors, leftovers, metadata, rdma, rpc
from harness.node.types import RdmaDevices

MODE_ENV = "CHAOS_LOCAL_MODE"
MODES = ("root", "user", "plain")
GONE_S_MAX = 5.0
CALL_S_MAX = 30.0

_EVERYWHERE = frozenset(
    {
        *(Verb.SIGNAL, Verb.KILL, Verb.FREEZE, Verb.NOTICE, Verb.REPLACE),
        *(Verb.CPU, Verb.MEMORY, Verb.CONTROL, Verb.COMMAND, Verb.FILES, Verb.HOST),
    }
)
_TAKES_ROOT = "control groups for nodes take root"
_TAKES_NAMESPACES = "needs namespaces"
_NOBODY_EVICTS = "no engine schedules these nodes: use `via: signal` or a metadata endpoint"
_CGROUP_VERBS = (Verb.CPU_QUOTA, Verb.MEMORY_KERNEL)
_NAMESPACE_VERBS = (*network_calls.VERBS, Verb.STORAGE)
_SUMMARIES = {
    "root": "virtual hosts in namespaces, as root",
    "user": "virtual hosts in namespaces, as an ordinary user",
    "plain": "process trees without namespaces",
}


class LocalNode(NetworkedNode, StoringNode):
    def __init__(
        self,
        lab: client.LabClient,
        gone: set[str],
        run_dir: pathlib.Path,
        workload: Launch,
        name: str,
        index: int,
        incarnation: int,
    ):
        super().__init__(name, index, incarnation, run_dir)
        run_folder.prepare_log(run_dir, self.key)
        view: dict[str, Any] = {"run_dir": str(run_dir), "writable": run_folder.writable(workload, name, self.key)}
        try:
            created = lab.call("node.create", name=name, incarnation=incarnation, **view)
        except rpc.StageError as error:
            reason = kernel_errors.explain(error.stage, error.errno, lab.mode)
            raise BackendError(f"node {name} cannot be made: {reason}") from error
        self.address = str(created["address"])
        self.metadata = "{}:{}".format(*created["metadata"])
        self._lab = lab
        self._gone = gone  # kept by the cluster, as a node may go before it is known by its object

    @property
    def alive(self) -> bool:
        return self.key not in self._gone and not self._lab.ended

    def _storage(self) -> NetworkCaller:
        return self._lab

    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        return self._lab.call(f"node.{method}", limit_s, node=self.key, **params)

    def kill(self) -> None:
        self._call("kill")

    def freeze(self) -> None:
        self._call("freeze")

    def limit_cpu(self, cpus: float | None) -> None:
        self._call("limit_cpu", cpus=cpus)

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        return str(self._call("limit_memory", limit_bytes=limit_bytes, keeper=keeper))


class LocalCluster(TellingCluster):
    on_this_host = True

    def __init__(self, workload: Launch, run_dir: pathlib.Path, run_id: str, mode: str):
        super().__init__()
        self._workload = workload
        self._run_dir = run_dir
        self._run_id = run_id
        self._mode = mode
        self._nodes: list[LocalNode] = []
        self._gone: set[str] = set()
        self._closed = False
        self._control_starts = 0
        names = [f"node{index}" for index in range(workload.nodes)]
        self._archive = str(run_dir / delivery.NAME)
        run_folder.prepare(run_dir, workload, [run_folder.CONTROL, *names])
        self._lab = client.LabClient(mode, run_id, run_dir / "logs" / "labd.log", self._on_event)
        try:
            storage_calls.mount(self._lab, run_dir, workload.mounts, workload.recorded)
            for index, name in enumerate(names):
                self._nodes.append(self._new(name, index, 1))
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def start(self) -> None:
        if self._workload.control is not None:
            self.restart_control()
        for node in self._nodes:
            self._start_node(node)

    @property
    def control_running(self) -> bool:
        return bool(self._lab.call("control.running"))

    def kill_control(self) -> None:
        self._lab.call("control.kill")

    def restart_control(self) -> None:
        if self._workload.control is None:
            raise UsageError("this workload has no control command")
        self._control_starts += 1
        command = self._fill(self._workload.control, self._lab.control)
        env = self._environment("control", self._control_starts)
        log = self._log("control")
        self._lab.call("control.start", command=command, env=env, log=log, incarnation=self._control_starts)

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._workload = self._workload.changed(command, env)

    def replace(self, node: Node) -> Node:
        self.refuse_replacement(node)
        fresh = self._new(node.name, node.index, node.incarnation + 1)
        self._nodes[node.index] = fresh
        self._start_node(fresh)
        return fresh

    def exits(self) -> list[Exit]:
        found = super().exits()
        if not found and self._lab.ended and not self._closed:
            raise BackendError(f"the lab ended unexpectedly; see {self._run_dir / 'logs' / 'labd.log'}")
        return found

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lab.close()
        deadline = time.monotonic() + GONE_S_MAX
        while (left := leftovers.leftovers(self._run_id)) and time.monotonic() < deadline:
            leftovers.sweep(self._run_id, GONE_S_MAX)
        cgroups.sweep(self._run_id)
        if left:
            raise BackendError(f"processes of run {self._run_id} are still there: {left}")

    def _new(self, name: str, index: int, incarnation: int) -> LocalNode:
        return LocalNode(self._lab, self._gone, self._run_dir, self._workload, name, index, incarnation)

    def _start_node(self, node: LocalNode) -> None:
        places = {"index": node.index, "incarnation": node.incarnation}
        command = self._fill(self._workload.command, node.address, **places)
        env = self._environment(node.name, node.incarnation, gpus_of(node.index, self._workload.ranks_per_node))
        env |= metadata.environment(node.metadata)
        self._lab.call("node.start", node=node.key, command=command, env=env, log=self._log(node.key))

    def _fill(self, command: tuple[str, ...], address: str, **more: object) -> tuple[str, ...]:
        addresses = {"address": address, "control": self._lab.control, "head": self._nodes[0].address}
        return fill_placeholders(command, addresses | {"python": sys.executable, "run_dir": self._run_dir} | more)

    def _log(self, name: str) -> str:
        return str(self._run_dir / run_folder.log_of(name))

    def _environment(self, node: str, incarnation: int, gpus: str | None = None) -> dict[str, str]:
        """Returns the environment of a node's command. The plan's variables replace variables of the same name that the
        harness inherited."""
        device = "lo" if self._mode == "plain" or node == "control" else "eth0"
        devices = {f"{library}_SOCKET_IFNAME": device for library in ("GLOO", "TP", "NCCL")}
        if gpus is not None:  # a virtual node is a host of its own; NCCL refuses two ranks of one host on one GPU
            devices |= {"CUDA_VISIBLE_DEVICES": gpus, "NCCL_HOSTID": node}
        marks = client.marks(self._run_id, node, incarnation) | run_folder.environment(str(self._run_dir), node)
        marks |= run_folder.key_of(self._run_dir)
        return boot.with_delivered({**os.environ, **devices, **self._workload.env, **marks}, self._archive)

    def _on_event(self, event: rpc.Message) -> None:
        match event:
            case {"event": "exit", "node": node, "incarnation": incarnation, "code": code}:
                self.ends.append(Exit(node, incarnation, code))
            case {"event": "gone", "node": name, "incarnation": incarnation}:
                self._gone.add(f"{name}.{incarnation}")


class LocalBackend(Backend):
    name = "local"

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, ...], tuple[str, Mapping[str, str]]] = {}
        self._tried: dict[str, Mapping[Verb, str | None]] = {}

    def probe(self) -> Capability:
        no_linux = f"needs Linux, this is {sys.platform}: use the docker backend, or a virtual machine"
        mode, refused = self._choose() if sys.platform == "linux" else ("", {"": no_linux})
        if not mode:
            reason = "; ".join(dict.fromkeys(refused.values()))
            return Capability(False, reason, frozenset(), dict.fromkeys(Verb, reason))
        limits = {**_kernel_limits(mode), **self._try_out(mode)}
        found = _EVERYWHERE | {verb for verb, reason in limits.items() if reason is None}
        why = dict.fromkeys(Verb, _NOBODY_EVICTS)
        if mode == "plain":
            reason = f"{_TAKES_NAMESPACES}: " + (refused.get("user") or f"{MODE_ENV}=plain asks to do without them")
            why |= dict.fromkeys(_NAMESPACE_VERBS, reason)
        missing = {verb: limits.get(verb) or why[verb] for verb in Verb if verb not in found}
        summary, seen = "; ".join([_SUMMARIES[mode], *dict.fromkeys(refused.values())]), rdma.look()
        return Capability(True, summary, found, missing, RdmaDevices(tuple(seen["devices"]), seen["gpus"]))

    def sweep(self, dry_run: bool = False) -> list[str]:
        found = [left.words for left in leftovers.leftovers()]
        found += [f"control group {group}" for group in cgroups.leftovers()]
        if not dry_run:
            sweep()
        return found

    def lacks(self) -> dict[str, dict[Verb, str]]:
        root = {Verb.EVICT: _NOBODY_EVICTS}
        user = root | dict.fromkeys(_CGROUP_VERBS, _TAKES_ROOT)
        return {
            "local, root": root,
            "local, user": user,
            "local, plain": user | dict.fromkeys(_NAMESPACE_VERBS, _TAKES_NAMESPACES),
        }

    def render(self, workload: Launch) -> dict[str, Any]:
        names = [f"node{index}" for index in range(workload.nodes)]
        return {
            "nodes": [{"name": name, "command": list(workload.command)} for name in names],
            "control": list(workload.control) if workload.control is not None else None,
            "ranks_per_node": workload.ranks_per_node,
            "env": dict(workload.env),
        }

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> LocalCluster:
        mode, refused = self._choose()
        if not mode:
            raise CannotRunError("; ".join(dict.fromkeys(refused.values())))
        return LocalCluster(workload, run_dir, run_id, mode)

    def _try_out(self, mode: str) -> Mapping[Verb, str | None]:
        """Maps each operation on network or storage to `None` if it works on this machine, or else to the reason why
        not. Tries out each isolation mode only once."""
        if mode == "plain":
            return {}  # `probe` says why there is nothing to disturb
        if mode not in self._tried:
            networks = network_calls.examine(lambda: _probe_lab(mode))
            self._tried[mode] = networks | {Verb.STORAGE: storage_calls.examine(lambda: _probe_lab(mode))}
        return self._tried[mode]

    def _choose(self) -> tuple[str, Mapping[str, str]]:
        """Returns the best isolation mode that works on this machine (an empty text if none works), and for each better
        mode the reason why it does not work."""
        candidates = _candidates()
        if candidates not in self._chosen:
            self._chosen[candidates] = _first_that_works(candidates)
        return self._chosen[candidates]


def _first_that_works(candidates: tuple[str, ...]) -> tuple[str, Mapping[str, str]]:
    refused: dict[str, str] = {}
    for mode in candidates:
        reason = try_mode(mode)
        if reason is None:
            return mode, refused
        refused[mode] = reason
    return "", refused


def _candidates() -> tuple[str, ...]:
    forced = os.environ.get(MODE_ENV)
    if forced is None:
        return MODES if os.geteuid() == 0 else MODES[1:]
    if forced not in MODES:
        raise UsageError(f"{MODE_ENV}={forced!r}: allowed are {', '.join(MODES)}")
    return (forced,)


def gpus_of(node: int, ranks: int) -> str | None:
    """Returns CUDA_VISIBLE_DEVICES for a virtual node, or `None` on a machine without GPUs. If the machine has too few
    GPUs, nodes share them."""
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = ours.split(",") if ours else sorted(path.name[6:] for path in pathlib.Path("/dev").glob("nvidia[0-9]*"))
    if not every or ours == "":
        return None
    return ",".join(every[(node * ranks + rank) % len(every)] for rank in range(min(ranks, len(every))))


def _probe_lab(mode: str) -> client.LabClient:
    return client.LabClient(mode, f"probe-{secrets.token_hex(6)}", None)


def try_mode(mode: str) -> str | None:
    """Tries to make a virtual node in this mode. Returns `None` if the virtual node works, or else the reason with a
    remedy."""
    try:
        with contextlib.closing(_probe_lab(mode)) as lab:
            lab.call("node.create", name="probe", incarnation=1)
    except rpc.StageError as error:
        return kernel_errors.explain(error.stage, error.errno, mode)
    except BackendError as error:
        return str(error)
    return None


def _kernel_limits(mode: str) -> dict[Verb, str | None]:
    as_root = None if mode == "root" else _TAKES_ROOT
    return {
        Verb.CPU_QUOTA: as_root or cgroups.why_not("cpu"),
        Verb.MEMORY_KERNEL: as_root or cgroups.why_not("memory"),
        **dict.fromkeys((Verb.CLOCK, Verb.GPU)),
        **refused_libraries(),
    }


def sweep(run_id: str | None = None) -> None:
    """Ends processes and removes control groups that the run `run_id` has left. Without `run_id`, removes what any dead
    harness has left. Raises `BackendError` if anything is left, after an attempt to remove everything."""
    each(lambda remove: remove(run_id), (leftovers.sweep, cgroups.sweep))


def UNDO(run_id: str, environment: dict[str, str]) -> None:
    sweep(run_id)


BACKEND = LocalBackend()
