"""Runs Slurm's commands, each with a time limit, and parses their output.

The commands act on the Slurm cluster that `SLURM_CONF` names. If `SLURM_CONF` is not set, the commands act on the
cluster that `engines/slurm.sh` started on this host or, without such a cluster, on the site's cluster.

The command in `CHAOS_SLURM_POWER` (the power command) kills nodes and brings them back. The power command is called
with `kill NODE RUN`, `boot NODE` and `heal RUN` (bring back all nodes that were killed for that run). The script
`engines/slurm.sh` is the default power command for a Slurm cluster that this script started. Without a power command
(or with `none`), the harness sets nodes to `down` in Slurm and resumes them, which only root and SlurmUser may do.
"""

import getpass
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from harness.backends.site_commands import answer_of
from harness.errors import BackendError, CannotRunError

ENGINES_ENV = "CHAOS_ENGINES_DIR"
POWER_ENV = "CHAOS_SLURM_POWER"
COMMAND_S_MAX = 20.0
GONE_S_MAX = 90.0  # KillWait is 30 s where nobody changed it
TASKS_GONE_S = 3.0
LAST_WORDS_S = 7.0  # of a slurmd whose tasks were killed: it looks for corpses, and runs the site's epilog
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
ENDED = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
}
_ROOT = pathlib.Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job as `squeue` shows it. `hosts` is in Slurm's own notation, like `n[1-2]`."""

    id: int
    name: str
    states: tuple[str, ...]  # the state, then flags such as COMPLETING
    restarts: int
    hosts: str
    reason: str

    @property
    def running(self) -> bool:
        return self.states == ("RUNNING",)

    @property
    def pending(self) -> bool:
        return self.states == ("PENDING",)

    @property
    def ended(self) -> bool:
        return self.states[0] in ENDED and len(self.states) == 1


class Slurm:
    """Calls the commands of one Slurm installation. Methods raise `BackendError` if a command fails or does not end in
    time."""

    def __init__(self, environment: Mapping[str, str], power: Sequence[str], label: str):
        self.environment = dict(environment)
        self.power_command = tuple(power)
        self.label = label
        self._operator: bool | None = None

    def run(self, *command: str, env: Mapping[str, str] | None = None, limit_s: float = COMMAND_S_MAX) -> str:
        return answer_of(command, self.environment | dict(env or {}), limit_s)

    def begin(self, *command: str, link: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Starts a command without waiting for its end. `link` is the command's standard input and output."""
        path = shutil.which(command[0], path=self.environment.get("PATH")) or command[0]
        try:
            return subprocess.Popen(
                [path, *command[1:]],
                env=self.environment,
                stdin=link.fileno(),
                stdout=link.fileno(),
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the harness, which then ends this
            )
        except OSError as error:
            raise BackendError(f"{command[0]}: {error.strerror}") from error

    # Jobs

    def submit(self, *arguments: str, env: Mapping[str, str] | None = None) -> int:
        answer = self.run("sbatch", "--parsable", *arguments, env=env)
        return int(answer.strip().split(";")[0])

    def jobs(self, *selection: str) -> list[SlurmJob]:
        """Returns the jobs that `squeue` lists with these options, including jobs that ended a moment ago."""
        answer = json.loads(self.run("squeue", "--json", "--states=all", *selection))
        return [_read_job(job) for job in answer["jobs"]]

    def job(self, job_id: int) -> SlurmJob | None:
        """Returns the Slurm job with this id, or `None` if it ended so long ago that Slurm has forgotten it."""
        try:
            found = self.jobs(f"--jobs={job_id}")
        except BackendError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return next((job for job in found if job.id == job_id), None)

    def jobs_named(self, *names: str) -> list[SlurmJob]:
        return [job for job in self.jobs(f"--name={','.join(names)}") if job.name in names and not job.ended]

    def cancel(self, *names: str) -> None:
        """Ends the jobs with these names, and waits until all their processes have ended. Raises `BackendError` if the
        jobs do not end in time."""
        deadline = time.monotonic() + GONE_S_MAX
        left = self.jobs_named(*names)
        running = [str(job.id) for job in left if job.running]
        if running:
            # Tasks first: their end is then told to an srun that is there to hear it, which saves seconds.
            self._try("scancel", "--signal=KILL", *running)
            self._wait_until_ended(names, time.monotonic() + TASKS_GONE_S)
        refusal = ""
        if left := self.jobs_named(*names):
            ids = [str(job.id) for job in left]
            refusal = self._try("scancel", *ids)  # never again in the queue …
            self._try("scancel", "--full", "--signal=KILL", *ids)  # … and no time to dawdle
        if left := self._wait_until_ended(names, deadline):
            jobs = ", ".join(str(job.id) for job in left)
            raise BackendError(f"Slurm jobs {jobs} do not end within {GONE_S_MAX:g} s. {refusal}")

    def _wait_until_ended(self, names: Sequence[str], deadline: float) -> list[SlurmJob]:
        while (left := self.jobs_named(*names)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _try(self, *command: str) -> str:
        """Runs a Slurm command, and returns its error message, or an empty text if it succeeds. Since an error may be
        harmless, the caller checks later whether the command worked."""
        try:
            self.run(*command)
        except BackendError as error:
            return str(error)
        return ""

    # Nodes

    def hosts(self, notation: str) -> list[str]:
        """Expands Slurm's notation of hosts (such as `n[1-2]`) to host names, in the order of SLURM_NODEID."""
        return self.run("scontrol", "show", "hostnames", notation).split()

    def addresses(self, notation: str) -> dict[str, str]:
        lines = self.run("sinfo", "--noheader", "--Node", f"--nodes={notation}", "--format=%N=%o").split()
        return dict(line.split("=", 1) for line in lines)

    def labels(self, key: str, hosts: Sequence[str]) -> list[str]:
        """Returns for each host the name of its switch or block in Slurm's topology.

        `key` is `switch`, `switch:LEVEL` or `block`. Raises `CannotRunError` for any other key, or if Slurm's topology
        has no such switch or block with nodes.
        """
        wanted = re.fullmatch(r"(switch|block)(?::(\d{1,2}))?", key)
        if wanted is None:
            raise CannotRunError(f"node_labels_from: {key}: Slurm tells switch, switch:LEVEL and block")
        found: dict[str, str] = {}
        for line in self.run("scontrol", "show", "topology").splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            name = words.get({"switch": "SwitchName", "block": "BlockName"}[wanted[1]])
            if name and words.get("Nodes") and int(words.get("Level") or 0) == int(wanted[2] or 0):
                found |= dict.fromkeys(self.hosts(words["Nodes"]), name)
        if not found:
            none = f"`scontrol show topology` has no {key} with nodes"
            raise CannotRunError(f"node_labels_from: {key}: {none}; write node_labels instead")
        return [found.get(host, "") for host in hosts]

    def count_nodes(self) -> int:
        return len(set(self.run("sinfo", "--noheader", "--Node", "--format=%N").split()))

    @property
    def is_operator(self) -> bool:
        if self._operator is None:
            line = self._configured("SlurmUser")
            self._operator = os.geteuid() == 0 or f" {getpass.getuser()}(" in line
        return self._operator

    @property
    def end_s_max(self) -> float:
        """Returns how many seconds may pass from the order to end a job until a node reports the job's end.

        A node's slurmd kills a job that runs on for `KillWait` (at least 5 s), and reports the end after the kill.
        """
        found = re.search(r"= *(\d+)", self._configured("KillWait"))
        return max(float(found[1]) if found else 30.0, 5.0) + LAST_WORDS_S

    def _configured(self, key: str) -> str:
        lines = self.run("scontrol", "show", "config").splitlines()
        return next((line for line in lines if line.startswith(f"{key} ")), "")

    def evicting_partition(self, below: str | None, host: str | None) -> str | None:
        """Returns a Slurm partition whose jobs can preempt jobs of the partition `below` on `host`, or `None` if no
        partition fits. `None` stands for the default partition in `below`, and for any host in `host`."""
        if "partition_prio" not in self._configured("PreemptType"):
            return None
        lines = self.run("scontrol", "--oneliner", "show", "partition").splitlines()
        found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines if line]
        mine = [each for each in found if each["PartitionName"] == below or (not below and each["Default"] == "YES")]
        if not mine or mine[0].get("PreemptMode") == "OFF":
            return None
        tier = int(mine[0]["PriorityTier"])
        for entry in found:
            higher = int(entry["PriorityTier"]) > tier and entry["State"] == "UP"
            if higher and (host is None or host in self.hosts(entry["Nodes"])):
                return entry["PartitionName"]
        return None

    # Taking nodes away and bringing them back

    @property
    def takes_nodes(self) -> bool:
        return bool(self.power_command) or self.is_operator

    def take_down(self, host: str, run_id: str) -> None:
        """Takes a host away from the run: kills the host by the site's power command or, without one, sets it to `down`
        in Slurm."""
        if self.power_command:
            self.run(*self.power_command, "kill", host, run_id)
        else:
            self.run("scontrol", "update", f"nodename={host}", "state=down", f"reason={_reason(run_id)}")

    def bring_back(self, host: str) -> None:
        if self.power_command:
            self.run(*self.power_command, "boot", host, limit_s=60)
        else:
            self._resume(host)

    def drain(self, host: str, run_id: str) -> None:
        self.run("scontrol", "update", f"nodename={host}", "state=drain", f"reason={_reason(run_id)}")

    def resume_drained(self, run_id: str) -> None:
        lines = self.run("sinfo", "--noheader", "--Node", "--list-reasons", "--format=%N|%E").splitlines()
        for host in {line.partition("|")[0] for line in lines if line.partition("|")[2] == _reason(run_id)}:
            self._resume(host)

    def heal(self, run_id: str) -> None:
        if self.power_command:
            self.run(*self.power_command, "heal", run_id, limit_s=60)
        self.resume_drained(run_id)

    def _resume(self, host: str) -> None:
        """Resumes a host in Slurm, unless the host has come back by itself (`ReturnToService=2`)."""
        states = self.run("sinfo", "--noheader", "--nodes", host, "--format=%T").split()
        if any(state.startswith(("down", "drain")) for state in states):
            self.run("scontrol", "update", f"nodename={host}", "state=resume")


def _reason(run_id: str) -> str:
    return f"chaos:{run_id}"


def _read_job(data: Mapping[str, Any]) -> SlurmJob:
    """Parses a line of `squeue` as a Slurm job. Slurm 22 writes a job's state as a text and numbers as plain JSON
    numbers. Newer versions of Slurm write a list of states, and numbers as objects with `set` and `number`."""
    states = data["job_state"]
    if isinstance(states, str):
        states = [states, *(["COMPLETING"] if "COMPLETING" in data.get("flags", []) else [])]
    restarts = data.get("restart_cnt", 0)
    return SlurmJob(
        id=int(data["job_id"]),
        name=str(data.get("name", "")),
        states=tuple(states),
        restarts=int(restarts.get("number", 0) if isinstance(restarts, dict) else restarts or 0),
        hosts=str(data.get("nodes") or ""),
        reason=str(data.get("state_reason", "")),
    )


def find_slurm() -> Slurm:
    """Finds the Slurm commands on this machine. Raises `CannotRunError` if a Slurm command is missing, or if only root
    may use this Slurm."""
    engine = pathlib.Path(os.environ.get(ENGINES_ENV, "/var/lib/chaos-engines")) / "slurm"
    ours = os.environ.get("SLURM_CONF", "") == str(engine / "slurm.conf")
    ours |= "SLURM_CONF" not in os.environ and (engine / "run" / "ctl.pid").exists()
    # A harness that itself runs inside a Slurm job must not make its own job look like part of that one.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
    if "SLURM_CONF" in os.environ:
        inherited["SLURM_CONF"] = os.environ["SLURM_CONF"]
    power = shlex.split(os.environ.get(POWER_ENV, ""))
    if ours:
        if os.geteuid() != 0:
            raise CannotRunError("the Slurm of engines/slurm.sh can be used by root only")
        inherited["SLURM_CONF"] = str(engine / "slurm.conf")
        inherited["PATH"] = f"{engine / 'bin'}:{inherited.get('PATH', os.defpath)}"
        power = power or [str(_ROOT / "engines" / "slurm.sh")]
    if power == ["none"]:
        power = []
    absent = [name for name in COMMANDS if shutil.which(name, path=inherited.get("PATH")) is None]
    if absent:
        raise CannotRunError(f"no Slurm here: {', '.join(absent)} not found; `make engines` sets one up on this host")
    return Slurm(inherited, power, "the Slurm of engines/slurm.sh" if ours else "this site's Slurm")
