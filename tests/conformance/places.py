"""Where the suite runs: every backend, the local one in each of its modes; and what a run may leave there."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import machine
from event_files import read_log
from waiting import until

from harness.backends.contract import Backend, Capability, Cluster, Launch, Node, backend_names, load_backend
from harness.node import cgroups, processes

T = TypeVar("T")
ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = (pathlib.Path(__file__).parent / "worker.py").read_text()
STORE = "store"
LISTENING = "0A"  # a state in /proc/net/tcp
CONTROL = ("{python}", "-S", "-c", "import time; print('control is up at {control}', flush=True); time.sleep(900)")


def worker(steps: int = 0, code: int = 0, store: str = "") -> tuple[str, ...]:
    """The worker as a node's command; node i ends with `code` × i. No `steps`: it goes on until it is killed."""
    return ("{python}", "-S", "-c", WORKER, str(steps), str(code), store, "{head}")


@dataclass(frozen=True)
class Place:
    """`name` is the column of the table; `mode` is the local backend's."""

    name: str
    backend_name: str
    mode: str = ""

    @property
    def backend(self) -> Backend:
        return load_backend(self.backend_name)

    @property
    def control_is_apart(self) -> bool:
        """Whether the control command has an address that no node has."""
        return self.backend_name != "slurm"

    @property
    def env(self) -> dict[str, str]:
        """Nodes that run from this source tree are told where it is; an image has its own."""
        return {"PYTHONPATH": str(ROOT)} if self.backend_name in ("local", "slurm") else {}

    def probe(self) -> Capability:
        return self.backend.probe()

    def lack(self) -> str:
        """Why no node can be had here; "" where one can. It may have to be started first."""
        if self.backend_name == "kubernetes" and not os.environ.get("CHAOS_KUBECONFIG"):
            return "CHAOS_KUBECONFIG names no cluster"
        if self.mode == "root" and os.geteuid() != 0:
            return "not root"
        return {"docker": machine.docker_lack, "slurm": machine.slurm_lack}.get(self.backend_name, str)()

    def left_of(self, run_id: str) -> list[str]:
        """Everything of the run that is still there, found without the backend's own bookkeeping where possible."""
        here = [*processes_of(run_id), *map(str, cgroups.leftovers(run_id))]
        return here + _WITNESSES[self.backend_name](run_id)


def processes_of(run_id: str) -> list[str]:
    """What runs on this machine with the run's mark in its environment, the node it is of and its command."""
    found = []
    for process in processes.every():
        marks = processes.environment(process.pid) if process.running and process.pid != os.getpid() else {}
        if marks.get("CHAOS_RUN_ID") == run_id:
            node = f"{marks.get('CHAOS_NODE', '?')}.{marks.get('CHAOS_INCARNATION', '?')}"
            found.append(f"process {process.pid} of {node}: {process}")
    return found


def fuse_mounts_below(folder: pathlib.Path) -> list[str]:
    """Mounts of ours there, in the mount namespace of anybody on this machine: process, then what is mounted where."""
    found = []
    for process in processes.every():
        with contextlib.suppress(OSError):  # it has just ended
            lines = pathlib.Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
            found += [f"{process.pid} {line}" for line in lines if " fuse.chaos " in line and f" {folder}" in line]
    return found


def listeners_of(run_id: str) -> list[str]:
    """Addresses (hexadecimal, as the kernel shows them) at which the run listens in *this machine's* own network."""
    marked = [each.pid for each in processes.every() if processes.environment(each.pid).get("CHAOS_RUN_ID") == run_id]
    held = set()
    for pid in {*marked, *(each.pid for each in processes.descendants(os.getpid()))}:
        with contextlib.suppress(OSError):  # it has just ended
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                held.add(os.readlink(link))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING and f"socket:[{words[9]}]" in held:
                found.append(words[1])
    return found


def docker_things(run_id: str) -> list[str]:
    from harness.backends.docker.engine import Engine

    engine = Engine()
    try:
        label = {"label": f"chaos.run_id={run_id}"}
        found = [str(entry["Id"]) for entry in engine.api.containers(all=True, filters=label)]
        found += [str(entry["Id"]) for entry in engine.api.networks(filters=label)]
        return found + [str(entry["Name"]) for entry in engine.api.volumes(filters=label)["Volumes"] or ()]
    finally:
        engine.close()


def _slurm_things(run_id: str) -> list[str]:
    from harness.backends.slurm.engine import find_slurm

    slurm = find_slurm()
    jobs = [f"job {job.id}" for job in slurm.jobs() if run_id in job.name and not job.ended]
    reasons = slurm.run("sinfo", "--noheader", "--Node", "--list-reasons", "--format=%N|%E").splitlines()
    engine = pathlib.Path(os.environ.get("CHAOS_ENGINES_DIR", "/var/lib/chaos-engines")) / "slurm" / "killed"
    dead = [f"dead node {mark.name}" for mark in engine.glob("*") if mark.read_text().strip() == run_id]
    return jobs + dead + [line for line in reasons if run_id in line]


def _kubernetes_things(run_id: str) -> list[str]:
    from harness.backends.kubernetes.api import Api
    from harness.backends.kubernetes.settings import read_settings

    with contextlib.closing(Api(read_settings())) as api:
        kinds = [("v1", plural) for plural in ("pods", "services", "configmaps")]
        kinds += [("batch/v1", "jobs"), (api.policy, "poddisruptionbudgets")]
        found = [(plural, each["metadata"]) for version, plural in kinds for each in api.list(version, plural, "")]
    return [f"{plural} {each['name']}" for plural, each in found if run_id in str(each.get("labels"))]


_WITNESSES: dict[str, Callable[[str], list[str]]] = {
    "local": lambda run_id: [],
    "docker": docker_things,
    "slurm": _slurm_things,
    "kubernetes": _kubernetes_things,
}

PLACES = [
    *(Place(f"local, {mode}", "local", mode) for mode in ("root", "user", "plain")),
    Place("docker", "docker"),
    Place("slurm", "slurm"),
    *(Place(name, name) for name in backend_names() if name not in ("local", "docker", "slurm")),
]


@dataclass
class Job:
    """A running cluster and what can be seen of it."""

    place: Place
    cluster: Cluster
    run_dir: pathlib.Path
    run_id: str
    changes: list[Any] = field(default_factory=list)

    @property
    def nodes(self) -> Sequence[Node]:
        return self.cluster.nodes

    def events(self, node: Node, kind: str, incarnation: int | None = None) -> list[dict[str, Any]]:
        """The events of this kind that the worker on this node has written, oldest first."""
        key = (node.name, incarnation or node.incarnation)
        return [
            event
            for log in read_log(self.run_dir / "events")
            if (log.header.get("node"), log.header.get("incarnation")) == key
            for event in log.events
            if event["event"] == kind
        ]

    def steps(self, node: Node) -> int:
        return len(self.events(node, "step"))

    def wait_steps(self, node: Node, more: int = 1) -> None:
        wanted = self.steps(node) + more
        until(lambda: self.steps(node) >= wanted, f"step {wanted} on {node.name}.{node.incarnation}")

    def log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_exits(self, count: int) -> dict[tuple[str, int], int]:
        """(node, incarnation) → code, the control command's left out."""
        found: dict[tuple[str, int], int] = {}

        def look() -> bool:
            found.update({(end.node, end.incarnation): end.code for end in self.cluster.exits()})
            found.pop(("control", 1), None)
            return len(found) >= count

        until(look, f"{count} exits")
        return found


OpenJob = Callable[..., Job]


def open_job(place: Place, run_dir: pathlib.Path, run_id: str, command: Sequence[str], **more: Any) -> Job:
    """A started job. Options: `nodes`, `control`, `mounts`, `env`."""
    nodes, env = more.pop("nodes", 1), place.env | more.pop("env", {})
    workload = Launch(tuple(command), nodes, 1, env, **more)
    run_dir.mkdir(parents=True, exist_ok=True)
    cluster = place.backend.open(workload, run_dir, run_id)
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return Job(place, cluster, run_dir, run_id)
