"""Makes the requests to the Docker Engine API for a workload, as plain data. All functions of this module are free of
side effects.

Every Docker object of the harness has the label `chaos.run_id`. Only objects with the label `chaos.run_id` are removed,
so that objects of other users are safe.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from harness.backends import delivery, run_folder
from harness.backends.contract import Launch
from harness.backends.run_folder import CONTROL
from harness.node import boot
from harness.node.node_paths import NODE_LABEL, RUN_LABEL, SCRATCH

IMAGE = "chaos-node"
SHM_BYTES = 2**30  # data loaders and NCCL pass tensors through /dev/shm
PROCESSES_MAX = 4096

INCARNATION_LABEL = "chaos.incarnation"
TRAINER_LABEL = "chaos.trainer"
PYTHON = "python3"

# Of all nodes, whose addresses are known only once they are up; of the metadata endpoint; and torch asks for any.
HOSTS_FILE = "hosts"
HOSTS = (
    "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
    "169.254.169.254 metadata.google.internal\n0.0.0.0 any\n"
)
# An internal network has no name server. The engine's own would let every unknown name time out, 10 s each, and
# PyTorch asks for some; this one refuses at once.
RESOLVER_FILE, RESOLVER = "resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

Request = dict[str, Any]

# The end of the harness's connection is the end of standard input in the container, and with it of the container.
_LINE = {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}


@dataclass(frozen=True)
class DockerRun:
    run_id: str = "{run_id}"
    run_dir: str = "{run_dir}"
    user: str = "{user}"
    image: str = IMAGE
    gpus: bool = False
    egress: bool = False

    @property
    def prefix(self) -> str:
        """Returns the prefix of the names of the run's containers and networks. A run id with unusual characters is
        replaced by its digest, which protects against injection."""
        plain = re.fullmatch(r"[a-zA-Z0-9_.-]{1,100}|\{run_id\}", self.run_id)
        return "chaos-" + (self.run_id if plain else hashlib.sha256(self.run_id.encode()).hexdigest()[:16])

    @property
    def network(self) -> str:
        return self.prefix

    @property
    def archive(self) -> str:
        return self.below(delivery.NAME)

    def below(self, name: str) -> str:
        return f"{self.run_dir}/{name}"

    def container(self, node: str, incarnation: int) -> str:
        """Returns the name of a node's container, which is also the name of the container's volume."""
        return f"{self.prefix}-{node}.{incarnation}"

    def labels(self, node: str, incarnation: int) -> dict[str, str]:
        return {RUN_LABEL: self.run_id, NODE_LABEL: node, INCARNATION_LABEL: str(incarnation)}


def render(workload: Launch, place: DockerRun) -> Request:
    """Returns all requests to the Docker daemon for a run's first nodes, and the commands that run in them."""
    nodes = node_names(workload)
    names = [*([CONTROL] if workload.control is not None else []), *nodes]
    return {
        "network": network(place),
        "containers": {name: container(workload, place, name, 1) for name in names},
        "commands": {CONTROL: list(workload.control or ())} | {name: list(workload.command) for name in nodes},
        "env": dict(workload.env),
    }


def node_names(workload: Launch) -> list[str]:
    return [f"node{index}" for index in range(workload.nodes)]


def network(place: DockerRun) -> Request:
    """Returns the request for the run's private network. Unless `egress` is set, the network is internal: nodes reach
    only the Docker daemon's own host."""
    return {
        "Name": place.network,
        "Driver": "bridge",
        "Internal": not place.egress,
        "CheckDuplicate": True,
        "Labels": {RUN_LABEL: place.run_id},
    }


def container(workload: Launch, place: DockerRun, node: str, incarnation: int) -> Request:
    """Returns the request to Docker that makes one node's container. The container starts the harness's init process,
    which starts the workload's command when the harness asks."""
    labels = place.labels(node, incarnation)
    gpus = gpu_ids(workload, int(node.removeprefix("node")), place) if node != CONTROL else []
    host: Request = {
        "NetworkMode": place.network,
        "Mounts": _mounts(workload, place, node, incarnation),
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": PROCESSES_MAX,
        "ShmSize": SHM_BYTES,
        "LogConfig": {"Type": "none"},  # standard output is the init's line to the harness; logs are in the run folder
    }
    if gpus:
        host["DeviceRequests"] = [{"Driver": "", "DeviceIDs": gpus, "Capabilities": [["gpu"]]}]
    init = "harness.node.node_init"
    return {
        "Image": place.image,
        "Hostname": node,
        "User": place.user,
        "Entrypoint": boot.command(PYTHON, place.archive, init, [node, *node_names(workload)]),
        "WorkingDir": SCRATCH,
        "Labels": labels,
        "HostConfig": host,
        **_LINE,
        "NetworkingConfig": {"EndpointsConfig": {place.network: {"IPAMConfig": {"LinkLocalIPs": ["169.254.169.254"]}}}},
    }


def _mounts(workload: Launch, place: DockerRun, node: str, incarnation: int) -> list[Request]:
    key = CONTROL if node == CONTROL else f"{node}.{incarnation}"
    labels = place.labels(node, incarnation)
    disk = {"Type": "volume", "Source": place.container(node, incarnation), "Target": SCRATCH}
    mounts = [_bind(path, path, read_only=True) for path in workload.sources]
    mounts.append(_bind(place.run_dir, place.run_dir, read_only=True))
    mounts += [_bind(path, path) for name in run_folder.writable(workload, node, key) for path in [place.below(name)]]
    mounts.append(disk | {"VolumeOptions": {"Labels": labels}})
    mounts.append(_bind(place.below(HOSTS_FILE), "/etc/hosts", read_only=True))
    if not place.egress:
        mounts.append(_bind(place.below(RESOLVER_FILE), "/etc/resolv.conf", read_only=True))
    return mounts


def sidecar(place: DockerRun, node: str, incarnation: int, container_id: str) -> Request:
    """Returns the request for the helper container in a node's network; only the helper may change the network."""
    return {
        "Image": place.image,
        "User": "0:0",
        "Entrypoint": boot.command(PYTHON, place.archive, "harness.node.sidecar"),
        "Labels": place.labels(node, incarnation),
        "HostConfig": {
            "NetworkMode": f"container:{container_id}",
            "Mounts": [_bind(place.archive, place.archive, read_only=True)],
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": PROCESSES_MAX,
            "LogConfig": {"Type": "none"},
        },
        **_LINE,
    }


def _bind(source: str, target: str, read_only: bool = False) -> Request:
    return {"Type": "bind", "Source": source, "Target": target} | ({"ReadOnly": True} if read_only else {})


def gpu_ids(workload: Launch, index: int, place: DockerRun) -> list[str]:
    """Returns the host's GPUs for one node: one GPU for each rank of the node. The nodes of a run take the host's GPUs
    in ascending order."""
    if not place.gpus:
        return []
    first = index * workload.ranks_per_node
    return [str(number) for number in range(first, first + workload.ranks_per_node)]
