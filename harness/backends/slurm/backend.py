"""The Slurm backend: a run is one Slurm job, a node is an allocated node, and Slurm does all scheduling.

If a node is lost, Slurm ends the whole job, and starts the job again once it can allocate the nodes. If one node is
lost, evicted or replaced, Slurm starts every node of the job again, and `changes()` reports the end of the old nodes
and the start of the new nodes. By default, Slurm starts a requeued job only after two minutes. Once all lost nodes are
replaced or given up, the harness asks Slurm to start the job at once.

Signals are sent by a helper (`srun --overlap` in the job's own allocation), and only to processes that have the run's
id in their environment.

`CHAOS_SLURM_OPTIONS` holds the site's options for every `sbatch` (such as `--partition=… --account=…
--gpus-per-node=8`). `CHAOS_SLURM_QUEUE_S` is the time limit in seconds for the allocation. `CHAOS_SLURM_EVICTION`
chooses how Slurm evicts a node.
"""

import contextlib
import itertools
import os
import pathlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace as replaced
from typing import Any

from harness.backends import delivery, run_folder
from harness.backends.cluster_base import EngineBackend, TellingCluster
from harness.backends.contract import Change, Exit, Launch, Node, Verb
from harness.backends.sidecar_network import NetworkHost
from harness.backends.slurm import script
from harness.backends.slurm.capability import LACKS, PROBE, missing_verbs
from harness.backends.slurm.engine import ENGINES_ENV, POWER_ENV, Slurm, SlurmJob, find_slurm
from harness.backends.slurm.eviction import EVICTOR, Evictions, site_options
from harness.backends.slurm.job_network import SIDECAR, JobNetwork
from harness.backends.slurm.place import SlurmNode
from harness.backends.slurm.step_line import READY_S_MAX, StepLine
from harness.errors import BackendError, CannotRunError, FaultError, NodeGone, UsageError
from harness.log import untrusted_files
from harness.log.vocabulary import REQUEUED
from harness.node import owner_names

QUEUE_ENV = "CHAOS_SLURM_QUEUE_S"
QUEUE_S_MAX = 600.0
LOOK_S = 0.1  # between two looks at what the tasks left behind
BEAT_S = 5.0  # between two signs of life
ASK_S = 0.25  # between two questions to Slurm
UNKNOWN_S = 3.0  # so long it must say that it knows no such job: a busy controller may miss it once
SILENT_S_MAX = 60.0  # Slurm's controller may be busy, but not for ever
SETTLED_S = 2.5  # a job started again in the second in which its credential was revoked fails for good
NOTICED_S_MAX = 120.0  # until Slurm has noticed that a node is gone (SlurmdTimeout and its next round)

HOPELESS = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "AssocMaxNodePerJobLimit"}

EXITS = "slurm/exits"  # one file a command that has ended
EXIT_BYTES_MAX = 8
_EXIT_FILE = re.compile(r"(?P<name>control|node\d{1,6})\.(?P<incarnation>[1-9]\d{0,6})", re.ASCII)
_EXIT_CODE = re.compile(r"-?\d{1,3}", re.ASCII)
_KILLED = -int(signal.SIGKILL)
_JOB_NAME = "chaos-{run_id}"


class SlurmCluster(TellingCluster):
    tells_changes = True

    def __init__(self, slurm: Slurm, workload: Launch, run_dir: pathlib.Path, run_id: str):
        super().__init__()
        self._slurm, self.run_dir, self._run_id = slurm, run_dir, run_id
        self._state_dir = run_dir / "slurm"
        self._lock = threading.RLock()
        self._lines: list[StepLine] = []  # to processes of ours on the nodes
        self.network = JobNetwork(lambda: self._nodes, lambda: self._nodes[0].address, self._start_sidecar)
        self._nodes = [SlurmNode(self, index, 1) for index in range(workload.nodes)]
        self._places = workload.nodes  # how many nodes the job is to have
        self._lost: set[int] = set()  # places whose node was taken by us and is not back yet
        occupying = script.until_silent(sys.executable, str(run_dir / delivery.NAME), str(run_dir))
        self._evictions = Evictions(slurm, run_id, _JOB_NAME.format(run_id=run_id), occupying)
        self._may_start = False  # nothing to wait for any more: a requeued job can start now
        self._stopped_at = 0.0  # when it was first seen not running
        self._told_by = 0.0  # when nodes that were set down have told of the end of what ran there
        self._incarnation = 0  # of the job, as far as we have seen it running
        self._recorded: set[tuple[str, int]] = set()  # exits
        self._comparing: list[threading.Thread] = []
        self._job: SlurmJob | None = None
        self._stop = threading.Event()
        self._closed = False
        self._watcher = threading.Thread(target=self._watch, name="slurm", daemon=True)
        try:
            self._prepare(workload)
            threading.Thread(target=self._beat, name="slurm-beat", daemon=True).start()
            self._submit(workload)
            self._wait_for_allocation()
        except BaseException:
            self.close()
            raise
        self._watcher.start()

    @property
    def nodes(self) -> list[Node]:
        with self._lock:
            return list(self._nodes)

    @property
    def waiting(self) -> bool:
        return self._job is None or not self._job.ended

    def start(self) -> None:
        (self._state_dir / "go").touch()

    def replace(self, node: Node) -> Node:
        """Brings a lost node back, but only after Slurm has noticed the loss. Otherwise, Slurm would wait for the dead
        processes of the lost node. The returned node is alive as soon as Slurm runs the job again."""
        self.refuse_replacement(node)
        place = self._nodes[node.index]

        def noticed() -> bool:
            return self._incarnation > place.incarnation or self._job is None or not self._job.running

        if not self._wait(NOTICED_S_MAX, noticed):
            raise BackendError(f"Slurm did not notice within {NOTICED_S_MAX:g} s that {place.key} is gone")
        if self._evictions.has(place.index):
            self._evictions.give_back(place.index)
        else:
            self._slurm.bring_back(place.host)
        with self._lock:
            self._returned(place)
            if self._nodes[place.index] is place:
                self._nodes[place.index] = SlurmNode(self, place.index, place.incarnation + 1)
            return self._nodes[place.index]

    def node_labels(self, key: str) -> list[str]:
        return self._slurm.labels(key, [node.host for node in self._nodes])

    def give_up(self, node: Node) -> None:
        with self._lock:
            self._places -= 1
            self._returned(self._nodes[node.index])

    def _returned(self, place: SlurmNode) -> None:
        self._lost.discard(place.index)
        self._may_start = not self._lost

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join(30)
        for comparing in self._comparing:
            comparing.join(READY_S_MAX)
        try:
            self.network.close()  # its processes undo what they did, and so come before the end of the job
            for line in self._lines:
                line.close()
        finally:
            end_run(self._slurm, self._run_id)

    # What nodes ask for

    def helper(self, node: SlurmNode) -> StepLine:
        return self._line(node, "harness.node.slurm_helper", (node.name, self._run_id), "helper")

    def _line(self, node: SlurmNode, module: str, arguments: Sequence[str], name: str) -> StepLine:
        where = (f"--jobid={self._job_id}", "--nodes=1", f"--nodelist={node.host}")
        log = self.run_dir / "logs" / f"{node.key}.{name}.log"
        line = StepLine(self._slurm, where, str(self.run_dir / delivery.NAME), module, arguments, log)
        self._lines.append(line)
        if self._stop.is_set() and self._closed:  # too late: nobody would end it
            line.close()
        return line

    def _start_sidecar(self, host: NetworkHost) -> Any:
        assert isinstance(host, SlurmNode), "the hosts of this cluster are its nodes"
        return self._line(host, SIDECAR, (), "network")

    def _compare_clocks(self, nodes: Sequence[SlurmNode]) -> None:
        for node in nodes:
            with contextlib.suppress(BackendError):  # one that is lost just now is not compared
                if self._stop.is_set():
                    return
                self.readings.append(node.clock())

    def _lose(self, node: SlurmNode) -> None:
        with self._lock:
            if not node.alive:
                raise NodeGone(f"{node.key} is gone")
            self._lost.add(node.index)
            self._may_start = False

    def take_down(self, node: SlurmNode) -> None:
        self._lose(node)
        self._slurm.take_down(node.host, self._run_id)
        if not self._slurm.power_command:
            # Its slurmd lives, and tells of the job's end there when all is dead. If the job runs again by then,
            # Slurm takes that for the end of the new one, and the node is no longer the job's.
            self._told_by = time.monotonic() + self._slurm.end_s_max
            if not self._wait(NOTICED_S_MAX, lambda: node.gone):
                raise BackendError(f"Slurm did not end the job on {node.host}, though the node is set down")
        with self._lock:
            self._take(node, "node lost")

    def evict(self, node: SlurmNode) -> None:
        self._lose(node)
        self._evictions.evict(self._job_id, node.index, node.host)

    def _wait(self, seconds: float, until: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not until():
            if self.broken:
                raise self.broken
            if time.monotonic() > deadline or self._stop.is_set():
                return False
            time.sleep(0.02)
        return True

    # The job

    def _prepare(self, workload: Launch) -> None:
        run_folder.prepare(self.run_dir, workload, [run_folder.CONTROL, *(node.name for node in self._nodes)])
        (self._state_dir / "exits").mkdir(parents=True)

    def _beat(self) -> None:
        """Writes a new number to a file every few seconds. Without new numbers in this file, the Slurm job ends itself
        (see `slurm_watch`)."""
        for number in itertools.count(1):
            with contextlib.suppress(OSError, FaultError):  # a full disk, say: the next one may come through
                untrusted_files.replace(self.run_dir, script.ALIVE, str(number).encode())
            if self._stop.wait(BEAT_S):
                return

    def _submit(self, workload: Launch) -> None:
        request = script.render(workload)
        for name, text in request.files.items():
            (self._state_dir / name).write_text(text)
        values = {"run_id": self._run_id, "run_dir": str(self.run_dir)}
        arguments = [argument.format(**values) for argument in request.arguments]
        env = request.env | run_folder.key_of(self.run_dir)
        env |= {"CHAOS_PYTHON": sys.executable, "CHAOS_RUN_DIR": str(self.run_dir), "CHAOS_RUN_ID": self._run_id}
        env |= {"CHAOS_DELIVERED": str(self.run_dir / delivery.NAME)}
        batch = str(self._state_dir / "batch.sh")
        where = f"--chdir={pathlib.Path.cwd()}"
        try:
            self._job_id = self._slurm.submit(*arguments, where, *site_options(), batch, env=env)
        except BackendError as error:
            raise CannotRunError(f"Slurm refuses a job of {self._places} nodes: {error}") from error

    def _wait_for_allocation(self) -> None:
        limit_s = float(os.environ.get(QUEUE_ENV, QUEUE_S_MAX))
        deadline = time.monotonic() + limit_s
        while True:
            job = self._slurm.job(self._job_id)
            if job is None or job.ended:
                state = job.states[0] if job else "unknown to it now"
                raise BackendError(f"Slurm ended the job before it ran: {state}")
            if job.running:
                break
            if job.reason in HOPELESS:
                raise CannotRunError(f"Slurm will never run a job of {self._places} nodes here: {job.reason}")
            if time.monotonic() > deadline:
                raise CannotRunError(f"Slurm gave no nodes within {limit_s:g} s ({QUEUE_ENV}): {job.reason}")
            time.sleep(0.05)
        self._absorb(job)
        self.comings_and_goings.take()  # these nodes are told by `open`

    def _watch(self) -> None:
        answered = asked = seen = time.monotonic()
        while not self._stop.wait(LOOK_S):
            try:
                if time.monotonic() - asked >= ASK_S:
                    job, asked = self._slurm.job(self._job_id), time.monotonic()
                    seen = seen if job is None else asked
                    if job is None and asked - seen < UNKNOWN_S:
                        continue
                    if job is None:
                        known = self._job or SlurmJob(self._job_id, "", (), 0, "", "")
                        job = replaced(known, states=("CANCELLED",))
                    self._absorb(job)
                    answered = asked = time.monotonic()
                else:
                    self._read_exits()
            except BackendError as error:
                if time.monotonic() - answered > SILENT_S_MAX:
                    self.broken = error
                    return

    def _absorb(self, job: SlurmJob) -> None:
        """Updates the nodes from the job's state in Slurm. Reads the tasks' exit records after the job's state, so that
        no record of an ended job is missed."""
        hosts = self._slurm.hosts(job.hosts) if job.running and job.restarts + 1 > self._incarnation else []
        addresses = self._slurm.addresses(job.hosts) if hosts else {}
        with self._lock:
            self._read_exits()
            alive = [node for node in self._nodes if node.alive]
            if hosts or job.pending:
                for node in alive:
                    self._take(node, REQUEUED)
            elif job.ended:
                # Nodes whose command has ended were there to the end; the others were taken.
                for node in alive:
                    if (node.name, node.incarnation) not in self._recorded:
                        self._take(node, "the job has ended")
            if hosts:
                self._begin_incarnation(job.restarts + 1, hosts, addresses)
            self._job = job
        self._stopped_at = 0.0 if job.running else self._stopped_at or time.monotonic()
        settled = time.monotonic() >= max(self._stopped_at + SETTLED_S, self._told_by)
        if job.pending and settled and self._may_start and self._incarnation:
            # Takes it out of Slurm's own delay; with fewer nodes if some will not come back.
            places = self._places
            size = [f"NumNodes={places}-{places}", f"NumTasks={places}"] if places < len(self._nodes) else []
            self._slurm.run("scontrol", "update", f"jobid={self._job_id}", "StartTime=now", *size)
            self._may_start = False

    def _begin_incarnation(self, incarnation: int, hosts: list[str], addresses: Mapping[str, str]) -> None:
        self._incarnation = incarnation
        for index, host in enumerate(hosts):
            node = self._nodes[index]
            if node.host:  # otherwise it is waiting for just this
                node = self._nodes[index] = SlurmNode(self, index, incarnation)
            node.incarnation, node.address, node.host = incarnation, addresses.get(host, host), host
            self.comings_and_goings.append(Change(node.name, incarnation, allocated=True))
        # In a thread of its own: starting something on a node takes Slurm a moment, and exits must be seen meanwhile.
        self._comparing.append(threading.Thread(target=self._compare_clocks, args=(list(self._nodes),), daemon=True))
        self._comparing[-1].start()

    def _take(self, node: SlurmNode, reason: str) -> None:
        if node.gone:
            return
        node.gone = True
        self.comings_and_goings.append(Change(node.name, node.incarnation, allocated=False, reason=reason))
        self._note_exit(node.name, node.incarnation, _KILLED)

    def _read_exits(self) -> None:
        with self._lock:
            for name, incarnation, code in read_exits(self.run_dir, self._recorded):
                self._note_exit(name, incarnation, code)

    def _note_exit(self, name: str, incarnation: int, code: int) -> None:
        if (name, incarnation) not in self._recorded:
            self._recorded.add((name, incarnation))
            self.ends.append(Exit(name, incarnation, code))


def read_exits(run_dir: pathlib.Path, known: Set[tuple[str, int]] = frozenset()) -> list[tuple[str, int, int]]:
    """Returns the node name, incarnation and exit code of each ended command, except for the nodes (name and
    incarnation) in `known`. Skips files that are not exit records, because on some nodes a trainer can write to the
    folder of exit records."""
    found = []
    for file in untrusted_files.names_in(run_dir, EXITS):
        record = _EXIT_FILE.fullmatch(file)
        if record is None or (record["name"], int(record["incarnation"])) in known:
            continue
        try:
            code = untrusted_files.read(run_dir, f"{EXITS}/{file}", EXIT_BYTES_MAX).decode("ascii", "replace")
        except (OSError, FaultError):
            continue
        if _EXIT_CODE.fullmatch(code):
            found.append((record["name"], int(record["incarnation"]), int(code)))
    return found


def end_run(slurm: Slurm, run_id: str) -> None:
    """Ends the Slurm jobs of this run, and brings back all nodes that the run killed or drained. Repeated calls are
    safe."""
    name = _JOB_NAME.format(run_id=run_id)
    try:
        running = [job.name for job in slurm.jobs() if re.fullmatch(re.escape(name) + f"({EVICTOR}\\d+)?", job.name)]
        if running:
            slurm.cancel(*sorted(set(running)))
    finally:
        slurm.heal(run_id)


def UNDO(run_id: str, environment: dict[str, str]) -> None:
    with BACKEND.as_recorded(environment):
        end_run(find_slurm(), run_id)


class SlurmBackend(EngineBackend):
    name, never, labels = "slurm", LACKS, True
    absent = (BackendError, CannotRunError)  # and not what the user has set wrongly
    settings = ("SLURM_CONF", ENGINES_ENV, POWER_ENV)

    def try_out(self) -> tuple[str, dict[Verb, str]]:
        slurm = find_slurm()
        slurm.run("scontrol", "ping", limit_s=10)
        slurm.run("sbatch", "--test-only", "--nodes=1", *site_options(), "--wrap=true", limit_s=10)
        return f"{slurm.label}, {slurm.count_nodes()} nodes", missing_verbs(slurm)

    def render(self, workload: Launch) -> script.Submission:
        return script.render(workload)

    def sweep(self, dry_run: bool = False) -> list[str]:
        try:
            slurm = find_slurm()
            slurm.run("scontrol", "ping", limit_s=10)
            jobs = {job.name for job in slurm.jobs() if not job.ended}
        except (BackendError, CannotRunError):
            return []
        over = sorted(name for name in jobs if owner_names.is_over(name.removeprefix("chaos-"), PROBE))
        if over and not dry_run:
            slurm.cancel(*over)
        return [f"Slurm job {name}" for name in over]

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> SlurmCluster:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
            raise UsageError(f"run id {run_id!r}: letters, digits, '.', '_' and '-' are allowed")
        return SlurmCluster(find_slurm(), workload, run_dir, run_id)


BACKEND = SlurmBackend()
