"""The docker backend: a node is a container, and the Docker engine starts, stops and limits it.

Nodes share a private network and the run's folder, which has the same path on all of them. The harness's init process
in each container starts, signals and lists processes when the harness asks, over the container's standard input and
output. When the harness dies, the connection to the init process ends, and the container ends with the connection. All
containers, networks and volumes of a run have the run's label, by which an undo finds them.

`CHAOS_DOCKER_IMAGE` names an image other than `chaos-node`. `CHAOS_DOCKER_GPUS=1` gives every rank a GPU.
`CHAOS_DOCKER_EGRESS=1` lets nodes reach other networks (an object store, for instance).
"""

import contextlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from harness.backends import delivery, run_folder
from harness.backends.cluster_base import EngineBackend
from harness.backends.contract import Launch, Node, Verb, fill_placeholders
from harness.backends.docker import container_probe, request
from harness.backends.docker.container import DockerNode
from harness.backends.docker.container_line import ContainerLine
from harness.backends.docker.engine import ENGINES_DIR_ENV, Engine, address, each
from harness.backends.run_folder import CONTROL
from harness.backends.sidecar_network import Network, NetworkHost
from harness.errors import CannotRunError, ChaosError, UsageError
from harness.node import container_storage, metadata, owner_names

IMAGE_ENV, GPUS_ENV, EGRESS_ENV = "CHAOS_DOCKER_IMAGE", "CHAOS_DOCKER_GPUS", "CHAOS_DOCKER_EGRESS"

PROBE = "probe"  # the kind of name that what a probe makes has


class DockerCluster(container_probe.ProbedCluster):
    def __init__(self, engine: Engine, workload: Launch, place: request.DockerRun):
        super().__init__(workload)
        self._engine, self._workload, self._place = engine, workload, place
        self._run_dir = pathlib.Path(place.run_dir)
        self._closed = False
        self._prepare()
        self._nodes = [self._new(name, 1) for name in request.node_names(workload)]
        self._control = self._new(CONTROL, 1) if workload.control is not None else None
        self._network = Network(self._hosts, lambda: self._control_address, self._start_sidecar)
        try:
            engine.create_network(request.network(place))
            hosts = {host.name: host for host in self._hosts()}
            for host in hosts.values():  # in order, as their addresses are: by these a job numbers its ranks
                self._create(host)
            each(lambda name: self._come_up(hosts[name]), hosts)
            self._name_hosts()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Prepares the run's folder for its containers. Raises `CannotRunError` if the containers' user cannot be made
        the owner of files, as in a user namespace."""
        names = [*request.node_names(self._workload), *([CONTROL] if self._workload.control is not None else [])]
        try:
            run_folder.prepare(self._run_dir, self._workload, names, self._engine.owner)
        except PermissionError as error:
            why = f"cannot be given to the user of the containers: {error.strerror}"
            raise CannotRunError(f"{self._run_dir} {why}") from error
        (self._run_dir / request.RESOLVER_FILE).write_text(request.RESOLVER)
        (self._run_dir / request.HOSTS_FILE).write_text(request.HOSTS)

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def start(self) -> None:
        if self._control is not None:
            self.restart_control()
        for node in self._nodes:
            self._start_node(node)

    @property
    def control_host(self) -> DockerNode | None:
        return self._control

    def start_control(self, start: int, command: tuple[str, ...]) -> None:
        assert self._control is not None, "there is a control command, and so a host for it"
        filled = self._fill(command, self._control)
        self._control.run(filled, self._environment(self._control, start), self._log(self._control), start)

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._workload = self._workload.changed(command, env)

    def replace(self, node: Node) -> Node:
        self.refuse_replacement(node)
        fresh = self._new(node.name, node.incarnation + 1)
        self._create(fresh)
        self._come_up(fresh)
        self._nodes[node.index].disconnect()
        self._nodes[node.index] = fresh
        self._name_hosts()
        self._network.joined(fresh)
        self._start_node(fresh)
        return fresh

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
        found: dict[str, str] = self._network.call("net.examine", node=self._nodes[0].key)
        return {Verb(verb): reason for verb, reason in found.items()}

    @property
    def _control_address(self) -> str:
        return self._control.address if self._control is not None else ""

    def _fill(self, command: tuple[str, ...], host: DockerNode, **more: object) -> tuple[str, ...]:
        here = {"address": host.address, "control": self._control_address, **more}
        everywhere = {"run_dir": self._run_dir, "python": "python3", "head": self._nodes[0].address}
        return fill_placeholders(command, here | everywhere)

    def _hosts(self) -> list[DockerNode]:
        return [*self._nodes, *([self._control] if self._control is not None else [])]

    def _name_hosts(self) -> None:
        """Writes the hosts file of all nodes, which maps each node's name to the address of its newest container. The
        hosts file is rewritten in place, because all nodes mount it."""
        named = "".join(f"{host.address} {host.name}\n" for host in self._hosts())
        with (self._run_dir / request.HOSTS_FILE).open("r+") as file:
            file.write(request.HOSTS + named)
            file.truncate()

    def _new(self, name: str, incarnation: int) -> DockerNode:
        return DockerNode(self._engine, self._place, name, incarnation, self.ends)

    def _create(self, node: DockerNode) -> None:
        run_folder.prepare_log(self._run_dir, self._log_key(node), self._engine.owner)
        node.create(request.container(self._workload, self._place, node.name, node.incarnation), self._network)

    def _come_up(self, node: DockerNode) -> None:
        node.come_up(self._workload.mounts if node is not self._control else ())
        self.readings.append(node.clock())

    def _start_sidecar(self, host: NetworkHost) -> ContainerLine:
        assert isinstance(host, DockerNode), "the hosts of this cluster are its nodes"
        wanted = request.sidecar(self._place, host.name, host.incarnation, host.container)
        name = f"{self._place.container(host.name, host.incarnation)}-network"
        return ContainerLine(self._engine, name, wanted, self._run_dir / "logs" / f"{host.key}.network.log").come_up()

    def _start_node(self, node: DockerNode) -> None:
        command = self._fill(self._workload.command, node, index=node.index, incarnation=node.incarnation)
        environment = self._environment(node, node.incarnation)
        node.run(command, environment, self._log(node), node.incarnation)

    def _log_key(self, node: DockerNode) -> str:
        return CONTROL if node.name == CONTROL else node.key

    def _log(self, node: DockerNode) -> pathlib.Path:
        return self._run_dir / run_folder.log_of(self._log_key(node))

    def _environment(self, node: DockerNode, start: int) -> dict[str, str]:
        devices = {f"{library}_SOCKET_IFNAME": "eth0" for library in ("GLOO", "TP", "NCCL")}
        places = run_folder.environment(str(self._run_dir), node.name) | run_folder.key_of(self._run_dir)
        return {**devices, **metadata.environment(node.metadata), **self._workload.env, **places, **node.marks(start)}


class DockerBackend(EngineBackend):
    name, never = "docker", {Verb.HOST: "containers may run on another host, or in a virtual machine"}
    settings = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "HOME", ENGINES_DIR_ENV)

    def whereabouts(self) -> dict[str, str]:
        return super().whereabouts() | {"DOCKER_HOST": address()}

    def image_digest(self) -> str | None:
        try:
            engine = Engine(container_probe.PROBE_S_MAX)
        except ChaosError:
            return None
        with contextlib.closing(engine):
            return engine.image_id(os.environ.get(IMAGE_ENV, request.IMAGE))

    def try_out(self) -> tuple[str, dict[Verb, str]]:
        with contextlib.closing(Engine(container_probe.PROBE_S_MAX)) as engine:
            run_id = owner_names.new_name(PROBE)
            refused = container_probe.try_out(
                lambda workload, folder: DockerCluster(engine, workload, _place(engine, workload, folder, run_id)),
                container_storage.why_not(engine.address, engine.user),
            )
        summary = f"Docker {engine.info['ServerVersion']}, {engine.info['NCPU']} CPUs, at {engine.address}"
        return summary, {**self.never, **refused}

    def render(self, workload: Launch) -> dict[str, Any]:
        return request.render(workload, request.DockerRun())

    def sweep(self, dry_run: bool = False) -> list[str]:
        try:
            engine = Engine(container_probe.PROBE_S_MAX)
        except CannotRunError:
            return []
        with contextlib.closing(engine):
            over = sorted(name for name in engine.run_ids() if owner_names.is_over(name, PROBE))
            for name in () if dry_run else over:
                engine.remove_run(name)
        return [f"containers, networks and volumes of Docker labelled {name}" for name in over]

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> DockerCluster:
        engine = Engine()
        try:
            if workload.mounts and (reason := container_storage.why_not(engine.address, engine.user)):
                raise CannotRunError(reason)
            return DockerCluster(engine, workload, _place(engine, workload, run_dir, run_id))
        except BaseException:
            engine.close()
            raise


def _place(engine: Engine, workload: Launch, run_dir: pathlib.Path, run_id: str) -> request.DockerRun:
    image = os.environ.get(IMAGE_ENV, request.IMAGE)
    found = engine.image_labels(image).get(request.TRAINER_LABEL)
    if delivery.runs_reference_trainer(workload) and found != delivery.trainer_digest():
        raise CannotRunError(f"image {image!r} holds another version of the reference trainer: run 'make image' again")
    gpus, egress = (_flag(name) for name in (GPUS_ENV, EGRESS_ENV))
    return request.DockerRun(run_id, str(run_dir), engine.user, image, gpus, egress)


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise UsageError(f"{name}={value!r}: allowed are 0 and 1")
    return value == "1"


def UNDO(run_id: str, environment: dict[str, str]) -> None:
    """Removes all containers and networks of a run from the Docker engine that the run used. Repeated calls are
    safe."""
    with BACKEND.as_recorded(environment):
        engine = Engine()
    with contextlib.closing(engine):
        engine.remove_run(run_id)


BACKEND = DockerBackend()
