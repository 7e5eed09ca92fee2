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
import socket
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, cast

from harness.backend import Backend, Capability, Cluster, Exit, Node, Verb, Workload, fill_placeholders
from harness.container import request
from harness.container.engine import Engine, each, speaking
from harness.errors import BackendError, CannotRunError, ChaosError, NodeGone, UsageError
from harness.lab import rpc

IMAGE_ENV, GPUS_ENV, EGRESS_ENV = "CHAOS_DOCKER_IMAGE", "CHAOS_DOCKER_GPUS", "CHAOS_DOCKER_EGRESS"
READY_S_MAX = 30.0
CALL_S_MAX = 10.0
KILL_S_MAX = 15.0
PROBE_S_MAX = 20.0

Exits = collections.deque[Exit]

_VERBS = frozenset({Verb.SIGNAL, Verb.KILL, Verb.FREEZE, Verb.NOTICE, Verb.EVICT, Verb.REPLACE})


class DockerNode(Node):
    """A container and the line to its init. `on_exit` hears of the end of its command."""

    def __init__(self, engine: Engine, place: request.Place, name: str, incarnation: int, exits: Exits):
        self.name = name
        self.index = int(name.removeprefix("node")) if name != "control" else -1
        self.incarnation = incarnation
        self.address = ""
        self.metadata = ""
        self.frozen_pids: list[int] | None = None
        self._engine, self._place, self._exits = engine, place, exits
        self._ready, self._gone = threading.Event(), threading.Event()
        self._running = False

    @property
    def key(self) -> str:
        return f"{self.name}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def create(self, gpus: list[str], logs: pathlib.Path) -> None:
        """Starts the container and waits until its init answers."""
        name = self._place.container(self.name, self.incarnation)
        wanted = request.container(self._place, self.name, self.incarnation, gpus)
        self._container = self._engine.create(name, wanted)
        stream = self._engine.attach(self._container, (logs / f"{self.key}.init.log").open("ab"))
        self._client = rpc.Client(cast(socket.socket, stream), self._on_event, self._on_end)
        with speaking(f"starting node {self.key}"):
            self._engine.api.start(self._container)
        if not self._ready.wait(READY_S_MAX) or self._gone.is_set():
            raise BackendError(f"node {self.key} did not come up in {READY_S_MAX:g} s; see logs/{self.key}.init.log")
        self.address = self._engine.address_of(self._container, self._place.network)

    def run(self, command: tuple[str, ...], env: Mapping[str, str], log: pathlib.Path) -> None:
        self._running = True
        self._call("run", command=list(command), env=dict(env), log=str(log))

    def pids(self) -> list[int]:
        if self.frozen_pids is not None and self.alive:
            return self.frozen_pids  # its init is frozen, too, and nothing there can have changed
        try:
            found: list[int] = self._call("pids")
        except NodeGone:
            return []
        return found

    def signal(self, signum: signal.Signals, pid: int | None = None) -> int:
        if pid is not None and pid <= 1:
            raise UsageError(f"process {pid} cannot be signalled: give the id of a process on the node, above 1")
        count: int = self._call("signal", signum=int(signum), pid=pid)
        return count

    def kill(self) -> None:
        self._must_be_there()
        with speaking(f"killing node {self.key}"):
            self._engine.api.kill(self._container, "SIGKILL")
            # The engine tells that the container has ended once the kernel has ended every process in it.
            self._engine.api.wait(self._container, timeout=KILL_S_MAX, condition="not-running")
        if not self._gone.wait(KILL_S_MAX):
            raise BackendError(f"node {self.key} is still there {KILL_S_MAX:g} s after SIGKILL")

    def freeze(self) -> None:
        if self.frozen_pids is None:
            self.frozen_pids = self.pids()
            self._must_be_there()
            with speaking(f"freezing node {self.key}"):
                self._engine.api.pause(self._container)

    def thaw(self) -> None:
        if self.frozen_pids is not None:
            self._must_be_there()
            with speaking(f"thawing node {self.key}"):
                self._engine.api.unpause(self._container)
            self.frozen_pids = None

    def notice(self, provider: str, in_s: float) -> None:
        self._call("notice", provider=provider, in_s=in_s)

    def notice_seen(self) -> int:
        count: int = self._call("notice_seen")
        return count

    def evict(self, grace_s: float) -> None:
        """`docker stop`: SIGTERM, which our init passes on to everything there, and SIGKILL after the grace time."""
        self._must_be_there()
        threading.Thread(target=self._stop, args=(math.ceil(grace_s),), name=f"evict-{self.key}", daemon=True).start()

    def disconnect(self) -> None:
        """Ends the line, and with it the node."""
        self._running = False
        if hasattr(self, "_client"):
            self._client.close()

    def _stop(self, grace_s: int) -> None:
        try:
            with speaking(f"evicting node {self.key}"):
                self._engine.api.stop(self._container, timeout=grace_s)
        except BackendError:
            if self.alive and self._running:  # else the run has ended meanwhile, and took the node with it
                raise

    def _call(self, method: str, **params: Any) -> Any:
        self._must_be_there()
        try:
            return self._client.call(method, CALL_S_MAX, **params)
        except BackendError:
            self._must_be_there()
            raise

    def _must_be_there(self) -> None:
        if self._gone.is_set():
            raise NodeGone(f"node {self.key} is gone")

    def _on_event(self, event: rpc.Message) -> None:
        """Called from the line's reader thread."""
        match event:
            case {"event": "ready", "metadata": [host, port]}:
                self.metadata = f"{host}:{port}"
                self._ready.set()
            case {"event": "exit", "code": code} if self._running:
                self._running = False
                self._exits.append(Exit(self.name, self.incarnation, code))

    def _on_end(self) -> None:
        """The container's output has ended: its init is dead, and takes everything on the node with it."""
        if self._running:
            self._running = False
            self._exits.append(Exit(self.name, self.incarnation, -signal.SIGKILL))
        self.frozen_pids = None
        self._gone.set()
        self._ready.set()


class DockerCluster(Cluster):
    def __init__(self, engine: Engine, workload: Workload, place: request.Place):
        self._engine, self._workload, self._place = engine, workload, place
        self._run_dir = pathlib.Path(place.run_dir)
        self._exits: Exits = collections.deque()
        self._closed = False
        for name in ("events", "logs"):
            (self._run_dir / name).mkdir(parents=True, exist_ok=True)
        (self._run_dir / request.RESOLVER_FILE).write_text(request.RESOLVER)
        engine.hand_over(self._run_dir)
        self._nodes = [self._new(f"node{index}", 1) for index in range(workload.nodes)]
        self._control = self._new("control", 1) if workload.control is not None else None
        try:
            with speaking("creating the network"):
                engine.api._result(engine.api._post_json(engine.api._url("/networks/create"), request.network(place)))
            everybody = {node.name: node for node in (*self._nodes, self._control) if node is not None}
            each(lambda name: self._create(everybody[name]), everybody)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def start(self) -> None:
        if self._control is not None and self._workload.control is not None:
            address = self._control.address
            values = {"address": address, "control": address, "run_dir": self._run_dir, "python": "python3"}
            command = fill_placeholders(self._workload.control, values)
            self._control.run(command, self._environment(self._control), self._run_dir / "logs" / "control.log")
        for node in self._nodes:
            self._start_node(node)

    def replace(self, node: Node) -> Node:
        if self._nodes[node.index] is not node:
            raise UsageError(f"node {node.name}.{node.incarnation} has been replaced already")
        if node.alive:
            raise UsageError(f"node {node.name}.{node.incarnation} is still there; only a dead node is replaced")
        fresh = self._new(node.name, node.incarnation + 1)
        try:
            self._create(fresh)
        except BaseException:
            fresh.disconnect()
            raise
        self._nodes[node.index].disconnect()
        self._nodes[node.index] = fresh
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
        for node in (*self._nodes, self._control):
            if node is not None:
                node.disconnect()
        self._engine.remove_run(self._place.run_id)
        self._engine.close()
        self._closed = True

    def _new(self, name: str, incarnation: int) -> DockerNode:
        return DockerNode(self._engine, self._place, name, incarnation, self._exits)

    def _create(self, node: DockerNode) -> None:
        gpus = request.gpu_ids(self._workload, node.index, self._place) if node.index >= 0 else []
        node.create(gpus, self._run_dir / "logs")

    def _start_node(self, node: DockerNode) -> None:
        values = {
            "address": node.address,
            "control": self._control.address if self._control is not None else node.address,
            "index": node.index,
            "incarnation": node.incarnation,
            "run_dir": self._run_dir,
            "python": "python3",
        }
        command = fill_placeholders(self._workload.command, values)
        node.run(command, self._environment(node), self._run_dir / "logs" / f"{node.key}.log")

    def _environment(self, node: DockerNode) -> dict[str, str]:
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
            "CHAOS_INCARNATION": str(node.incarnation),
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
                summary = _try_out()
            except ChaosError as error:
                return Capability(False, str(error), frozenset(), dict.fromkeys(Verb, str(error)))
            missing = {verb: "the docker backend does not do this yet" for verb in Verb if verb not in _VERBS}
            self._probed = Capability(True, summary, _VERBS, missing)
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


def _try_out() -> str:
    """Runs a command on a node of one's own and reads what it wrote; returns one line about the engine."""
    engine = Engine(PROBE_S_MAX)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="chaos-probe-"))
    token = secrets.token_hex(8)
    try:
        workload = Workload(("python3", "-c", f"print('{token}')"), 1, 1)
        cluster = DockerCluster(engine, workload, _place(engine, folder, f"probe-{token}"))
        with cluster:
            cluster.start()
            _wait_for_token(cluster, folder / "logs" / "node0.1.log", token)
    finally:
        engine.close()
        shutil.rmtree(folder)
    return f"Docker {engine.info['ServerVersion']}, {engine.info['NCPU']} CPUs, at {engine.address}"


def _wait_for_token(cluster: DockerCluster, log: pathlib.Path, token: str) -> None:
    ended = threading.Event()
    for _ in range(int(PROBE_S_MAX / 0.02)):
        if cluster.exits():
            break
        ended.wait(0.02)
    if not log.exists() or token not in log.read_text():
        raise CannotRunError(
            "the engine does not share folders with this machine: what a node writes does not arrive here. "
            "Run the harness on the daemon's own host"
        )


def undo(run_id: str) -> int:
    """Removes whatever carries this run's label; returns how many things there were. Idempotent (`chaos heal`)."""
    engine = Engine()
    try:
        return engine.remove_run(run_id)
    finally:
        engine.close()


BACKEND = DockerBackend()
