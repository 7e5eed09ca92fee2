"""Finds out which acts on nodes this Docker engine supports, by trying them on a test container."""

from __future__ import annotations

import abc
import pathlib
import time
from collections.abc import Callable

from harness.backends.cluster_base import ControlledCluster
from harness.backends.contract import Cluster, Launch, Node, Verb
from harness.backends.node_base import refused_libraries
from harness.errors import BackendError, CannotRunError
from harness.node import owner_names, skew
from harness.node.types import StorageRule

PROBE_S_MAX = 20.0
SKEW_S = 7200.0
MOUNT = "probed"
# It runs with its clock ahead, and writes through a file system of ours where that is possible.
_CODE = f"import time; open('{{run_dir}}/{MOUNT}/file', 'w').close(); print('time', time.time())"


class ProbedCluster(ControlledCluster):
    @abc.abstractmethod
    def examine_network(self) -> dict[Verb, str]: ...


def try_out(open_cluster: Callable[[Launch, pathlib.Path], ProbedCluster], why_no_storage: str) -> dict[Verb, str]:
    """Tries acts on a test node. Returns the acts that this engine or its kernel refuses, each with the reason.

    Raises `CannotRunError` if the test node does not run, or does not share folders with this machine.
    """
    refused = refused_libraries() | ({Verb.STORAGE: why_no_storage} if why_no_storage else {})
    with owner_names.temporary_folder() as folder:
        environment = {} if Verb.CLOCK in refused else skew.prepare(folder)
        if environment:
            skew.set_offset(folder, "node0", SKEW_S)
        (folder / MOUNT).mkdir()
        mounts = () if why_no_storage else (MOUNT,)
        command = ("python3", "-c", _CODE)
        with open_cluster(Launch(command, 1, 1, environment, mounts=mounts), folder) as cluster:
            watched = [cluster.nodes[0].disturb_storage(mount, StorageRule(operations=("create",))) for mount in mounts]
            cluster.start()
            told_s = _wait_for_time(cluster, folder / "logs" / "node0.1.log")
            refused |= cluster.examine_network() | _try_limits(cluster.nodes[0])
            if not all(storage.counts()["matched"] for storage in watched):
                refused[Verb.STORAGE] = "a file system of ours that is mounted into a container is not used there"
        if abs(told_s - time.time() - SKEW_S) > SKEW_S / 2:
            refused.setdefault(Verb.CLOCK, "a library made on this machine does not load in the image")
    return refused


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
