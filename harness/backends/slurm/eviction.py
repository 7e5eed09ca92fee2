"""Makes Slurm itself take a node from a running job, and gives the node back.

The default way of eviction is `priority` if jobs of another partition can preempt the run's job, otherwise `drain`. The
variable `CHAOS_SLURM_EVICTION` chooses one of these ways:

* `priority`: another job, in a partition with a higher PriorityTier, preempts the run's job after its GraceTime
* `drain`: the node is drained and the job requeued; the job starts on other nodes, or once this node is resumed
* `requeue`: `scontrol requeue` requeues the job, which keeps its nodes
* `signal`: `scancel --signal` sends SIGUSR1, which tells the job that its time is over; the job then saves, asks to be
  requeued, and keeps its nodes
"""

import os
import shlex

from harness.backends.slurm.engine import Slurm
from harness.errors import UsageError

OPTIONS_ENV = "CHAOS_SLURM_OPTIONS"
EVICTION_ENV = "CHAOS_SLURM_EVICTION"
EVICT_PARTITION_ENV = "CHAOS_SLURM_EVICT_PARTITION"
WAYS = ("priority", "drain", "requeue", "signal")
EVICTOR = "-evictor"


def site_options() -> list[str]:
    return shlex.split(os.environ.get(OPTIONS_ENV, ""))


def evicting_partition(slurm: Slurm, host: str | None = None) -> str | None:
    """Returns a Slurm partition whose jobs can preempt the run's job on `host` (default: on any host), or `None` if
    there is none."""
    if named := os.environ.get(EVICT_PARTITION_ENV):
        return named
    chosen = [option.split("=", 1)[1] for option in site_options() if option.startswith("--partition=")]
    return slurm.evicting_partition(chosen[-1] if chosen else None, host)


def why_not(slurm: Slurm) -> str:
    if _chosen_way() in ("requeue", "signal") or evicting_partition(slurm) or slurm.is_operator:
        return ""
    return (
        "no partition whose jobs preempt ours (PreemptType=preempt/partition_prio), and no right to drain; "
        f"{EVICTION_ENV}=requeue or signal needs neither"
    )


class Evictions:
    """Makes Slurm take nodes away from the job of one run. `job_name` is the name of the run's Slurm job. An evicted
    node can be taken over by another job, which runs the shell command `occupying` until the harness has ended."""

    def __init__(self, slurm: Slurm, run_id: str, job_name: str, occupying: str):
        self._slurm, self._run_id, self._job_name, self._occupying = slurm, run_id, job_name, occupying
        self._evictors: dict[int, str] = {}  # place → job name, empty where no job evicts

    def evict(self, job_id: int, place: int, host: str) -> None:
        """Asks Slurm to take a node away from the job, without waiting until the node is gone. Raises `UsageError` if
        `CHAOS_SLURM_EVICTION` has an unknown value."""
        way = _chosen_way()
        partition = evicting_partition(self._slurm, host) if way in ("", "priority") else None
        self._evictors[place] = f"{self._job_name}{EVICTOR}{place}" if partition else ""
        if partition:
            where = (f"--partition={partition}", f"--nodelist={host}", "--nodes=1", "--exclusive")
            what = (f"--job-name={self._evictors[place]}", "--output=/dev/null", "--no-requeue", "--chdir=/")
            self._slurm.submit(*where, *what, f"--wrap=exec {self._occupying}")
        elif way == "signal":
            self._slurm.run("scancel", "--batch", "--signal=USR1", str(job_id))
        else:
            if way != "requeue":
                self._slurm.drain(host, self._run_id)
            self._slurm.run("scontrol", "requeue", str(job_id))

    def has(self, place: int) -> bool:
        return place in self._evictors

    def give_back(self, place: int) -> None:
        evictor = self._evictors.pop(place)
        if evictor:
            self._slurm.cancel(evictor)
        self._slurm.resume_drained(self._run_id)


def _chosen_way() -> str:
    way = os.environ.get(EVICTION_ENV, "")
    if way and way not in WAYS:
        raise UsageError(f"{EVICTION_ENV}={way!r}: allowed are {', '.join(WAYS)}")
    return way
