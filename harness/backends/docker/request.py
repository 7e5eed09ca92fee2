"""A workload as requests to the Docker Engine API: pure, plain data, the way it goes over the wire.

Names and labels are built here and only here. Everything we create carries the label `chaos.run_id`; removal goes
by that label alone, so that nothing of anybody else's can ever be hit.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.backends.agent.places import NODE_LABEL, RUN_LABEL, SCRATCH
from harness.backends.contract import Workload

IMAGE = "chaos-node"
SHM_BYTES = 2**30  # data loaders and NCCL pass tensors through /dev/shm
PROCESSES_MAX = 4096

INCARNATION_LABEL = "chaos.incarnation"
SOURCE_LABEL = "chaos.source"

# An internal network has no name server. The engine's own would let every unknown name time out, 10 s each, and
# PyTorch asks for some; this one refuses at once.
RESOLVER_FILE, RESOLVER = "resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

Request = dict[str, Any]

# The end of the harness's connection is the end of standard input in the container, and with it of the container.
_LINE = {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}


@dataclass(frozen=True)
class Place:
    """What the machine adds to a workload: where the run lives, whose files it writes, and the daemon's image."""

    run_id: str = "{run_id}"
    run_dir: str = "{run_dir}"
    user: str = "{user}"
    image: str = IMAGE
    gpus: bool = False
    egress: bool = False

    @property
    def prefix(self) -> str:
        """Start of every name. A run id with anything but name characters becomes its digest: no injection."""
        plain = re.fullmatch(r"[a-zA-Z0-9_.-]{1,100}|\{run_id\}", self.run_id)
        return "chaos-" + (self.run_id if plain else hashlib.sha256(self.run_id.encode()).hexdigest()[:16])

    @property
    def network(self) -> str:
        return self.prefix

    def container(self, node: str, incarnation: int) -> str:
        """Name of the container, and of its own disk."""
        return f"{self.prefix}-{node}.{incarnation}"

    def labels(self, node: str, incarnation: int) -> dict[str, str]:
        return {RUN_LABEL: self.run_id, NODE_LABEL: node, INCARNATION_LABEL: str(incarnation)}


def render(workload: Workload, place: Place) -> Request:
    """Everything that will be asked of the daemon for the first incarnations, and what then runs where."""
    nodes = {name: index for index, name in enumerate(node_names(workload))}
    control = {"control": container(place, "control", 1, [], [*nodes])} if workload.control is not None else {}
    return {
        "network": network(place),
        "containers": control
        | {name: container(place, name, 1, gpu_ids(workload, index, place), [*nodes]) for name, index in nodes.items()},
        "commands": {"control": list(workload.control or ())} | {name: list(workload.command) for name in nodes},
        "env": dict(workload.env),
    }


def node_names(workload: Workload) -> list[str]:
    return [f"node{index}" for index in range(workload.nodes)]


def network(place: Place) -> Request:
    """The run's private network. `Internal`: no way out of it and none into it but from the daemon's own host."""
    return {
        "Name": place.network,
        "Driver": "bridge",
        "Internal": not place.egress,
        "CheckDuplicate": True,
        "Labels": {RUN_LABEL: place.run_id},
    }


def container(place: Place, node: str, incarnation: int, gpus: Sequence[str], nodes: Sequence[str] = ()) -> Request:
    """One node. It starts with our init alone; the workload's command is a call to that.

    `nodes` are the names of all nodes: strangers that crowd one of them take its part of the machine only.
    """
    name = place.container(node, incarnation)
    labels = place.labels(node, incarnation)
    scratch = {"Type": "volume", "Source": name, "Target": SCRATCH, "VolumeOptions": {"Labels": labels}}
    mounts = [_bind(place.run_dir, place.run_dir), scratch]
    if not place.egress:
        mounts.append(_bind(f"{place.run_dir}/{RESOLVER_FILE}", "/etc/resolv.conf") | {"ReadOnly": True})
    host: Request = {
        "NetworkMode": place.network,
        "Mounts": mounts,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": PROCESSES_MAX,
        "ShmSize": SHM_BYTES,
        "ExtraHosts": ["metadata.google.internal:169.254.169.254", "any:0.0.0.0"],
        "LogConfig": {"Type": "none"},  # standard output is the init's line to the harness; logs are in the run folder
    }
    if gpus:
        host["DeviceRequests"] = [{"Driver": "", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    return {
        "Image": place.image,
        "Hostname": node,
        "User": place.user,
        "Entrypoint": ["python3", "-m", "harness.backends.agent.container_init", node, *(nodes or [node])],
        "WorkingDir": SCRATCH,
        "Labels": labels,
        "HostConfig": host,
        **_LINE,
        "NetworkingConfig": {"EndpointsConfig": {place.network: {"IPAMConfig": {"LinkLocalIPs": ["169.254.169.254"]}}}},
    }


def sidecar(place: Place, node: str, incarnation: int, container_id: str) -> Request:
    """Beside a node, in its network: the only container with a privilege, and that one reaches this network alone."""
    return {
        "Image": place.image,
        "User": "0:0",
        "Entrypoint": ["python3", "-m", "harness.backends.agent.sidecar"],
        "Labels": place.labels(node, incarnation),
        "HostConfig": {
            "NetworkMode": f"container:{container_id}",
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": PROCESSES_MAX,
            "LogConfig": {"Type": "none"},
        },
        **_LINE,
    }


def _bind(source: str, target: str) -> Request:
    return {"Type": "bind", "Source": source, "Target": target}


def gpu_ids(workload: Workload, index: int, place: Place) -> list[str]:
    """One GPU a rank; the nodes of a run share the host's GPUs in order."""
    if not place.gpus:
        return []
    first = index * workload.ranks_per_node
    return [str(number) for number in range(first, first + workload.ranks_per_node)]
