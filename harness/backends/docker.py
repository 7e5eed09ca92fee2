"""The docker backend: a node is a container of our image, and the engine starts, stops and limits it.

Nodes share a private network and the run's folder, which has the same path on all of them. Over the attached
standard input and output our init in each container is asked to start the command, to signal and to list; when
the harness dies, that connection ends and the containers with it. What then is left carries the run's label.

`CHAOS_DOCKER_IMAGE` names another image than `chaos-node`, `CHAOS_DOCKER_GPUS=1` gives every rank a GPU,
`CHAOS_DOCKER_EGRESS=1` lets nodes reach the outside (an object store, for instance).
"""

from __future__ import annotations

import collections
import math
import os
import pathlib
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any, cast

from harness import skew
from harness.backend import (
    Backend,
    Capability,
    Cluster,
    CpuUse,
    Exit,
    MemoryUse,
    Node,
    ProcessState,
    Verb,
    Workload,
    fill_placeholders,
)
from harness.container import request
from harness.container.engine import Engine, each, speaking
from harness.container.line import Line
from harness.container.network import Host, Network
from harness.errors import BackendError, CannotRunError, ChaosError, NodeGone, UsageError
from harness.lab import rpc
from harness.lab.client import LabClient
from harness.lab.net_node import NetworkedNode

IMAGE_ENV, GPUS_ENV, EGRESS_ENV = "CHAOS_DOCKER_IMAGE", "CHAOS_DOCKER_GPUS", "CHAOS_DOCKER_EGRESS"
CALL_S_MAX = 10.0
FILL_S_MAX = 40.0
KILL_S_MAX = 15.0
PROBE_S_MAX = 20.0
SKEW_S = 7200.0  # in the probe
PERIOD_US = 50_000  # of a CPU quota; shorter than the kernel's 100 ms, as a training step often is
QUOTA_US_MIN = 1_000  # the kernel takes no less
CONTROL = "control"

Exits = collections.deque[Exit]

_NOT_DONE = {Verb.STORAGE: "the docker backend mounts no file system of its own; the local backend does"}


class DockerNode(NetworkedNode):
    """A container and the line to its init. `exits` hears of the end of its command."""

    def __init__(self, engine: Engine, place: request.Place, name: str, incarnation: int, exits: Exits):
        self.name = name
        self.index = int(name.removeprefix("node")) if name != CONTROL else -1
        self.incarnation = incarnation
        self.address = ""
        self._engine, self._place, self._exits = engine, place, exits
        self._gone = threading.Event()
        self._running = 0  # which start of its command, while that runs
        self._frozen_pids: list[int] | None = None

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    @property
    def running(self) -> bool:
        return self._running > 0

    @property
    def metadata(self) -> str:
        """Where its metadata endpoint listens."""
        return "{}:{}".format(*self._line.ready["metadata"])

    def create(self, wanted: request.Request, logs: pathlib.Path, network: Network) -> None:
        """Starts the container and waits until its init answers."""
        self._network = network
        self._lab = cast(LabClient, network)
        name = self._place.container(self.name, self.incarnation)
        self._line = Line(self._engine, name, wanted, logs / f"{self.key}.init.log", self._on_event, self._on_end)
        self.container = self._line.container
        self.address = self._engine.address_of(self.container, self._place.network)

    def run(self, command: tuple[str, ...], env: Mapping[str, str], log: pathlib.Path, start: int) -> None:
        self._running = start
        self._call("run", command=list(command), env=dict(env), log=str(log))

    def disconnect(self) -> None:
        """Ends the line, and with it the node. What its command does then is of no interest."""
        self._running = 0
        if hasattr(self, "_line"):
            self._line.close()

    def pids(self) -> list[int]:
        if self._frozen_pids is not None and self.alive:
            return self._frozen_pids  # its init is frozen, too, and nothing there can have changed
        try:
            found: list[int] = self._call("pids")
        except NodeGone:
            return []
        return found

    def processes(self) -> list[ProcessState]:
        if self._frozen_pids is not None and self.alive:
            return [ProcessState(pid, "T", 0) for pid in self._frozen_pids]
        try:
            found = self._call("states")
        except NodeGone:
            return []
        return [ProcessState(**each) for each in found]

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        if pid is not None and pid <= 1:
            raise UsageError(f"process {pid} cannot be signalled: give the id of a process on the node, above 1")
        count: int = self._call("signal", signum=int(signum), pid=pid)
        return count

    def kill(self) -> None:
        self._must_be_there()
        with speaking(f"killing node {self.key}"):
            self._engine.api.kill(self.container, "SIGKILL")
            # The engine tells that the container has ended once the kernel has ended every process in it.
            self._engine.api.wait(self.container, timeout=KILL_S_MAX, condition="not-running")
        if not self._gone.wait(KILL_S_MAX):
            raise BackendError(f"node {self.key} is still there {KILL_S_MAX:g} s after SIGKILL")

    def freeze(self) -> None:
        if self._frozen_pids is None:
            self._frozen_pids = self.pids()
            self._must_be_there()
            with speaking(f"freezing node {self.key}"):
                self._engine.api.pause(self.container)

    def thaw(self) -> None:
        if self._frozen_pids is not None:
            self._must_be_there()
            with speaking(f"thawing node {self.key}"):
                self._engine.api.unpause(self.container)
            self._frozen_pids = None

    def notice(self, provider: str, in_s: float) -> None:
        self._call("notice", provider=provider, in_s=in_s)

    def notice_seen(self) -> int:
        count: int = self._call("notice_seen")
        return count

    def evict(self, grace_s: float) -> None:
        """`docker stop`: SIGTERM, which our init passes on to everything there, and SIGKILL after the grace time."""
        self._must_be_there()
        threading.Thread(target=self._stop, args=(math.ceil(grace_s),), name=f"evict-{self.key}", daemon=True).start()

    def limit_cpu(self, cpus: float | None) -> None:
        if cpus is not None and not cpus > 0:
            raise UsageError(f"a quota of {cpus} CPUs; it must be above 0")
        quota_us = -1 if cpus is None else max(QUOTA_US_MIN, round(cpus * PERIOD_US))
        self._update(cpu_period=PERIOD_US, cpu_quota=quota_us)

    def throttle(self, share: float | None) -> None:
        self._call("throttle", share=share)

    def crowd(self, kind: str, load: float | None) -> None:
        self._call("crowd", kind=kind, load=load)

    def cpu_use(self) -> CpuUse:
        use = self._call("cpu_use")
        with speaking(f"asking for the statistics of node {self.key}"):
            statistics = self._engine.api.stats(self.container, stream=False, one_shot=True)
        quota_ns = statistics["cpu_stats"].get("throttling_data", {}).get("throttled_time", 0)
        return CpuUse(use["used_ns"], use["throttled_ns"] + quota_ns, use["at_ns"])

    def limit_memory(self, limit_bytes: int | None, keeper: str = "auto") -> str:
        if limit_bytes is not None and limit_bytes <= 0:
            raise UsageError(f"a memory limit of {limit_bytes} bytes; it must be above 0")
        if limit_bytes is None:
            self._call("watch_memory", limit_bytes=None)
            everything = int(self._engine.info["MemTotal"])  # the engine knows no way back to "no limit"
            self._update(mem_limit=everything, memswap_limit=everything)
            return ""
        if keeper == "watchdog":
            self._call("watch_memory", limit_bytes=limit_bytes)
            return "watchdog"
        self._update(mem_limit=limit_bytes, memswap_limit=limit_bytes)
        return "kernel"

    def memory_use(self) -> MemoryUse:
        return MemoryUse(**self._call("memory_use"))

    def fill_memory(self, size_bytes: int, spare: bool) -> int:
        got: int = self._call("fill_memory", FILL_S_MAX, size_bytes=size_bytes, spare=spare)
        return got

    def doom(self, pid: int) -> None:
        self._call("doom", pid=pid)

    def skew_clock(self, offset_s: float) -> None:
        skew.set_offset(pathlib.Path(self._place.run_dir), self.name, offset_s)

    def _update(self, **limits: int) -> None:
        self._must_be_there()
        with speaking(f"limiting node {self.key}"):
            self._engine.api.update_container(self.container, **limits)

    def _stop(self, grace_s: int) -> None:
        try:
            with speaking(f"evicting node {self.key}"):
                self._engine.api.stop(self.container, timeout=grace_s)
        except BackendError:
            if self.alive and self.running:  # else the run has ended meanwhile, and took the node with it
                raise

    def _call(self, method: str, limit_s: float = CALL_S_MAX, **params: Any) -> Any:
        self._must_be_there()
        try:
            return self._line.call(method, limit_s, **params)
        except BackendError:
            self._must_be_there()
            raise

    def _must_be_there(self) -> None:
        if self._gone.is_set():
            raise NodeGone(f"node {self.key} is gone")

    def _on_event(self, event: rpc.Message) -> None:
        """Called from the line's reader thread."""
        match event:
            case {"event": "exit", "code": code}:
                self._note_exit(code)

    def _on_end(self) -> None:
        """The container's output has ended: its init is dead, and takes everything on the node with it."""
        self._note_exit(-signal.SIGKILL)
        self._frozen_pids = None
        self._gone.set()
        self._network.forget(self.key)

    def _note_exit(self, code: int) -> None:
        start, self._running = self._running, 0
        if start:
            self._exits.append(Exit(self.name, start, code))


class DockerCluster(Cluster):
    def __init__(self, engine: Engine, workload: Workload, place: request.Place):
        self._engine, self._workload, self._place = engine, workload, place
        self._run_dir = pathlib.Path(place.run_dir)
        self._exits: Exits = collections.deque()
        self._closed = False
        self._control_starts = 0
        for name in ("events", "logs"):
            (self._run_dir / name).mkdir(parents=True, exist_ok=True)
        (self._run_dir / request.RESOLVER_FILE).write_text(request.RESOLVER)
        engine.hand_over(self._run_dir)
        self._nodes = [self._new(name, 1) for name in request.node_names(workload)]
        self._control = self._new(CONTROL, 1) if workload.control is not None else None
        self._network = Network(self._hosts, lambda: self._control_address, self._start_sidecar)
        try:
            engine.create_network(request.network(place))
            hosts = {host.name: host for host in self._hosts()}
            each(lambda name: self._create(hosts[name]), hosts)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def start(self) -> None:
        if self._control is not None:
            self.restart_control()
        for node in self._nodes:
            self._start_node(node)

    def kill_control(self) -> None:
        if self._control is None or not self._control.running:
            raise NodeGone("there is no control command running")
        self._control.signal(signal.SIGKILL)
        deadline = time.monotonic() + KILL_S_MAX
        while self._control.running:
            if time.monotonic() > deadline:
                raise BackendError(f"the control command is still there {KILL_S_MAX:g} s after SIGKILL")
            time.sleep(0.002)

    def restart_control(self) -> None:
        if self._control is None or self._workload.control is None:
            raise UsageError("this workload has no control command")
        self._control_starts += 1
        values = {"address": self._control.address, "control": self._control.address}
        command = fill_placeholders(self._workload.control, values | self._same_everywhere)
        environment = self._environment(self._control, self._control_starts)
        self._control.run(command, environment, self._log(CONTROL), self._control_starts)

    def replace(self, node: Node) -> Node:
        if self._nodes[node.index] is not node:
            raise UsageError(f"node {node.name}.{node.incarnation} has been replaced already")
        if node.alive:
            raise UsageError(f"node {node.name}.{node.incarnation} is still there; only a dead node is replaced")
        fresh = self._new(node.name, node.incarnation + 1)
        self._create(fresh)
        self._nodes[node.index].disconnect()
        self._nodes[node.index] = fresh
        self._network.joined(fresh)
        self._start_node(fresh)
        return fresh

    def exits(self) -> list[Exit]:
        found = []
        while self._exits:
            found.append(self._exits.popleft())
        return found

    def close(self) -> None:
        if self._closed:
            return
        self._network.close()
        for host in self._hosts():
            host.disconnect()
        self._engine.remove_run(self._place.run_id)
        self._engine.close()
        self._closed = True

    def examine_network(self) -> dict[Verb, str]:
        """Why the kernel refuses a network verb, for those that it does."""
        found: dict[str, str] = self._network.call("net.examine", node=self._nodes[0].key)
        return {Verb(verb): reason for verb, reason in found.items()}

    @property
    def _control_address(self) -> str:
        return self._control.address if self._control is not None else ""

    @property
    def _same_everywhere(self) -> dict[str, object]:
        return {"run_dir": self._run_dir, "python": "python3"}

    def _hosts(self) -> list[DockerNode]:
        return [*self._nodes, *([self._control] if self._control is not None else [])]

    def _new(self, name: str, incarnation: int) -> DockerNode:
        return DockerNode(self._engine, self._place, name, incarnation, self._exits)

    def _create(self, node: DockerNode) -> None:
        gpus = request.gpu_ids(self._workload, node.index, self._place)
        names = request.node_names(self._workload)
        wanted = request.container(self._place, node.name, node.incarnation, gpus, names)
        node.create(wanted, self._run_dir / "logs", self._network)

    def _start_sidecar(self, host: Host) -> Line:
        assert isinstance(host, DockerNode), "the hosts of this cluster are its nodes"
        wanted = request.sidecar(self._place, host.name, host.incarnation, host.container)
        name = f"{self._place.container(host.name, host.incarnation)}-network"
        return Line(self._engine, name, wanted, self._run_dir / "logs" / f"{host.key}.network.log")

    def _start_node(self, node: DockerNode) -> None:
        values = {
            "address": node.address,
            "control": self._control_address,
            "index": node.index,
            "incarnation": node.incarnation,
        }
        command = fill_placeholders(self._workload.command, values | self._same_everywhere)
        environment = self._environment(node, node.incarnation)
        node.run(command, environment, self._log(node.key), node.incarnation)

    def _log(self, name: str) -> pathlib.Path:
        return self._run_dir / "logs" / f"{name}.log"

    def _environment(self, node: DockerNode, start: int) -> dict[str, str]:
        """The plan's and ours; nothing of what the harness itself runs under reaches a container."""
        devices = {f"{library}_SOCKET_IFNAME": "eth0" for library in ("GLOO", "TP", "NCCL")}
        host = node.metadata.removesuffix(":80")
        endpoints = {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
            "GCE_METADATA_HOST": host,
            "CHAOS_METADATA": f"http://{host}",
        }
        marks = {
            "CHAOS_EVENTS": str(self._run_dir / "events"),
            "CHAOS_NODE": node.name,
            "CHAOS_INCARNATION": str(start),
            "CHAOS_RUN_ID": self._place.run_id,
        }
        return {**devices, **endpoints, **self._workload.env, **marks}


class DockerBackend(Backend):
    name = "docker"

    def __init__(self) -> None:
        self._probed: Capability | None = None

    def probe(self) -> Capability:
        if self._probed is None:
            try:
                summary, refused = _try_out()
            except ChaosError as error:
                return Capability(False, str(error), frozenset(), dict.fromkeys(Verb, str(error)))
            missing = {verb: reason for verb in Verb if (reason := refused.get(verb, _NOT_DONE.get(verb)))}
            self._probed = Capability(True, summary, frozenset(Verb) - set(missing), missing)
        return self._probed

    def render(self, workload: Workload) -> dict[str, Any]:
        return request.render(workload, request.Place())

    def open(self, workload: Workload, run_dir: pathlib.Path, run_id: str) -> DockerCluster:
        if not run_dir.is_absolute():
            raise UsageError(f"run directory {str(run_dir)!r}: an absolute path is needed")
        engine = Engine()
        try:
            return DockerCluster(engine, workload, _place(engine, run_dir, run_id))
        except BaseException:
            engine.close()
            raise


def _place(engine: Engine, run_dir: pathlib.Path, run_id: str) -> request.Place:
    image = os.environ.get(IMAGE_ENV, request.IMAGE)
    found, wanted = engine.image_labels(image).get(request.SOURCE_LABEL), request.source_digest()
    if found != wanted:
        raise CannotRunError(f"image {image!r} was made from another version of this source: run 'make image' again")
    gpus, egress = (_flag(name) for name in (GPUS_ENV, EGRESS_ENV))
    return request.Place(run_id, str(run_dir), engine.user, image, gpus, egress)


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise UsageError(f"{name}={value!r}: allowed are 0 and 1")
    return value == "1"


def _try_out() -> tuple[str, dict[Verb, str]]:
    """Runs a command on a node of one's own, reads what it wrote, and tries what kernels may refuse.

    Returns one line about the engine, and for each refused verb the reason.
    """
    engine = Engine(PROBE_S_MAX)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-probe-"))
    try:
        environment = skew.prepare(folder) if skew.why_not() is None else {}
        if environment:
            skew.set_offset(folder, "node0", SKEW_S)
        command = ("python3", "-c", "import time; print('time', time.time())")
        workload = Workload(command, 1, 1, environment)
        place = _place(engine, folder, f"probe-{secrets.token_hex(8)}")
        cluster = DockerCluster(engine, workload, place)
        with cluster:
            cluster.start()
            told_s = _wait_for_time(cluster, folder / "logs" / "node0.1.log")
            refused = cluster.examine_network() | _try_limits(cluster.nodes[0])
        if abs(told_s - time.time() - SKEW_S) > SKEW_S / 2:
            refused[Verb.CLOCK] = skew.why_not() or "a library made on this machine does not load in the image"
    finally:
        engine.close()
        shutil.rmtree(folder)
    return f"Docker {engine.info['ServerVersion']}, {engine.info['NCPU']} CPUs, at {engine.address}", refused


def _wait_for_time(cluster: Cluster, log: pathlib.Path) -> float:
    deadline = time.monotonic() + PROBE_S_MAX
    while not cluster.exits() and time.monotonic() < deadline:
        time.sleep(0.02)
    words = log.read_text().split() if log.exists() else []
    if len(words) != 2 or words[0] != "time":
        raise CannotRunError(
            "the engine does not share folders with this machine: what a node writes does not arrive here. "
            "Run the harness on the daemon's own host"
        )
    return float(words[1])


def _try_limits(node: Node) -> dict[Verb, str]:
    def try_cpu() -> None:
        node.limit_cpu(1.0)
        node.limit_cpu(None)

    def try_memory() -> None:
        node.limit_memory(2**30, "kernel")
        node.limit_memory(None)

    refused = {}
    for verb, attempt in ((Verb.CPU_QUOTA, try_cpu), (Verb.MEMORY_KERNEL, try_memory)):
        try:
            attempt()
        except BackendError as error:
            refused[verb] = str(error)
    return refused


def undo(run_id: str) -> int:
    """Removes whatever carries this run's label; returns how many things there were. Idempotent (`chaos heal`)."""
    engine = Engine()
    try:
        return engine.remove_run(run_id)
    finally:
        engine.close()


BACKEND = DockerBackend()
