"""Attaches to a Slurm job that was started without the harness, and stops and continues its tasks by `srun --overlap`.

The harness does nothing that would hit the whole job (`scontrol suspend`) or jobs of other users (draining a node).
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from harness.backends.attached import ENDED, OPT_IN, RUNNING, AttachedJob, Seen, Undo, all_stopped, refuse_unasked
from harness.backends.slurm.backend import BACKEND
from harness.backends.slurm.engine import Slurm, find_slurm
from harness.errors import BackendError, FaultError, UsageError
from harness.log import untrusted_files

LINES = 500
OPTIONS = ("--export=NONE", "--mpi=none", "--chdir=/")
LINE_MAX = 1000
# Signals the tasks of the job's steps on this node, but for this very step, and prints how the kernel sees each.
SCRIPT = r"""
PATH=/usr/bin:/bin
found=$(grep -lszx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ)
[ -n "$found" ] && found=$(grep -Lszx "SLURM_STEP_ID=$SLURM_STEP_ID" $found)
[ -n "$found" ] && found=$(grep -lsz "^SLURM_STEP_ID=" $found)
for file in $found; do
    folder=${file%/environ}
    case $(cat "$folder/comm" 2>/dev/null) in srun|slurmstepd) continue ;; esac
    [ "$1" = LOOK ] || kill -s "$1" "${folder#/proc/}"
    cat "$folder/stat" 2>/dev/null
done
true
"""
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")


class SlurmJobAttached(AttachedJob):
    verbs = ("stop",)

    def __init__(self, slurm: Slurm, job_id: int, hosts: Sequence[str], allows_kill: bool):
        self.slurm, self.job_id, self.nodes = slurm, job_id, list(hosts)
        self.name, self.allows_kill = f"slurm job {job_id}", allows_kill

    def look(self) -> Mapping[str, Seen]:
        code = _ended(self.slurm, self.job_id)
        if code is not None:
            return {node: Seen(ENDED, "", code) for node in self.nodes}
        try:
            return {node: _seen(_step(self.slurm, self.job_id, node, "LOOK")) for node in self.nodes}
        except BackendError:
            code = _ended(self.slurm, self.job_id)  # it may have ended meanwhile
            if code is None:
                raise
            return {node: Seen(ENDED, "", code) for node in self.nodes}

    def log_tails(self) -> Mapping[str, Sequence[str]]:
        path = pathlib.Path(_fields(self.slurm, self.job_id).get("StdOut") or "")
        if not path.name:
            return {}
        try:
            text = untrusted_files.tail(path.parent, path.name)
        except (OSError, FaultError):
            return {}
        return {"": [line[:LINE_MAX] for line in text.splitlines()[-LINES:]]}

    def undo_of(self, verb: str, node: str) -> Undo:
        arguments = {"job_id": self.job_id, "host": node, "environment": BACKEND.whereabouts()}
        return Undo("attached.slurm", arguments)

    def act(self, verb: str, node: str) -> None:
        if not _step(self.slurm, self.job_id, node, "STOP"):
            raise BackendError(f"{self.name}: no task of its steps runs on {node}")


def attach(selection: str) -> SlurmJobAttached:
    """Returns the running Slurm job with this id. Raises `UsageError` if the job belongs to another user, or if its
    comment lacks `chaos.allow`, by which an owner allows faults."""
    if not selection.isdecimal():
        raise UsageError(f"--attach slurm:{selection}: write the id of a job, like slurm:1234")
    slurm, job_id = find_slurm(), int(selection)
    job = slurm.job(job_id)
    if job is None or not job.running:
        raise UsageError(f"--attach slurm:{job_id}: there is no running job of this id")
    line = slurm.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%U|%k").strip()
    owner, _, comment = line.partition("|")
    if owner != str(os.geteuid()):
        raise UsageError(f"job {job_id} belongs to user {owner}, not to you ({os.geteuid()}); nothing was touched")
    told = next((word.partition("=")[2] for word in comment.split() if word.startswith(f"{OPT_IN}=")), None)
    kills = refuse_unasked(f"job {job_id}", told, f"with sbatch --comment={OPT_IN}=true")
    return SlurmJobAttached(slurm, job_id, slurm.hosts(job.hosts), kills)


def _fields(slurm: Slurm, job_id: int) -> dict[str, str]:
    return dict(_FIELD.findall(slurm.run("scontrol", "--oneliner", "show", "job", str(job_id))))


def _ended(slurm: Slurm, job_id: int) -> int | None:
    job = slurm.job(job_id)
    if job is not None and not job.ended:
        return None
    if job is None:
        raise BackendError(f"Slurm has forgotten job {job_id}: how it ended is not known")
    code, _, number = _fields(slurm, job_id).get("ExitCode", "").partition(":")
    if job.states[0] != "COMPLETED":
        return int(code or 0) or 128 + int(number or 0)
    return int(code or 0)


def _step(slurm: Slurm, job_id: int, host: str, what: str) -> list[str]:
    """Sends the signal `what` to a job's tasks on one host, or no signal if `what` is `LOOK`. Returns the line of
    /proc/PID/stat of each task."""
    where = (f"--jobid={job_id}", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--mem=0")
    answer = slurm.run("srun", "--overlap", "--quiet", *where, *OPTIONS, "/bin/sh", "-c", SCRIPT, "sh", what)
    return [line for line in answer.splitlines() if line.strip()]


def _seen(lines: Sequence[str]) -> Seen:
    rows = [line.rpartition(")")[2].split() for line in lines]
    living = [row for row in rows if len(row) > 19 and row[0] != "Z"]
    used_s = sum(int(row[11]) + int(row[12]) for row in living) / os.sysconf("SC_CLK_TCK")
    stopped = all_stopped([row[0] for row in living])
    life = ",".join(sorted(row[19] for row in living))
    return Seen("stopped" if stopped else RUNNING if living else "without tasks", life, None, used_s)


def _undo(job_id: int, host: str, environment: dict[str, str]) -> None:
    """Lets the stopped tasks of a Slurm job on one host continue. Does nothing if the job is over."""
    with BACKEND.as_recorded(environment):
        slurm = find_slurm()
    job = slurm.job(job_id)
    if job is not None and job.running:
        _step(slurm, job_id, host, "CONT")


UNDO = _undo
HOW = "slurm:JOBID, as squeue shows it"
