"""Finds out which operations on nodes do not work on this Slurm cluster, with the rights of the current user."""

from __future__ import annotations

import contextlib
import os

from harness.backends.contract import Verb
from harness.backends.network_calls import VERBS
from harness.backends.node_base import refused_libraries
from harness.backends.slurm import eviction
from harness.backends.slurm.engine import Slurm
from harness.backends.slurm.eviction import site_options
from harness.backends.slurm.job_network import SIDECAR, TAKES_ROOT
from harness.backends.slurm.step_line import StepLine
from harness.errors import BackendError
from harness.node import boot, owner_names

PROBE_S = 10
PROBE_MINUTES_MAX = 5
PROBE = "probe"

LACKS = {
    Verb.HOST: "nodes are, or may be, other hosts than that of the harness",
    Verb.NOTICE: "no metadata endpoint is served on Slurm nodes: use `via: signal` or `via: engine`",
    Verb.CONTROL: "the control command is part of the job's own script, which Slurm runs once",
    Verb.COMMAND: "the command is part of the job's own script, which Slurm keeps as it was submitted",
    Verb.NET_RESET: "the control command runs on a node, and its connections could not be told from those of ranks",
    Verb.CPU_QUOTA: "control groups of Slurm nodes are Slurm's own: use `how: duty_cycle`",
    Verb.MEMORY_KERNEL: "control groups of Slurm nodes are Slurm's own: use `how: watchdog`",
}


def missing_verbs(slurm: Slurm) -> dict[Verb, str]:
    missing = _node_refusals(slurm) | LACKS | refused_libraries()
    if not slurm.takes_nodes:
        reason = "only root or the SlurmUser may set a node down; CHAOS_SLURM_POWER may name a command that can"
        missing |= {Verb.KILL: reason, Verb.REPLACE: reason}
    if reason := eviction.why_not(slurm):
        missing[Verb.EVICT] = reason
    else:
        missing.pop(Verb.REPLACE, None)
    return missing


def _node_refusals(slurm: Slurm) -> dict[Verb, str]:
    """Tries out network and storage disturbances on one free node, and returns those that do not work, with reasons. If
    no node is free, returns all of these disturbances."""
    try:
        with owner_names.temporary_folder() as folder:
            name = f"--job-name=chaos-{owner_names.new_name(PROBE)}"
            where = ("--nodes=1", f"--immediate={PROBE_S}", f"--time={PROBE_MINUTES_MAX}", name, *site_options())
            # From the harness's own source: nothing of a run is there that could hold what is delivered.
            line = StepLine(slurm, where, boot.place(), SIDECAR, (), folder / "probe.log")
            with contextlib.closing(line):
                place = {"address": "127.0.0.1", "control": "", "others": []}
                refused: dict[str, str] = dict.fromkeys(VERBS, TAKES_ROOT)
                if os.geteuid() == 0:
                    refused = line.call("examine", PROBE_S, place=place)
                if reason := line.call("storage.examine", PROBE_S):
                    refused[Verb.STORAGE] = reason
                return {Verb(verb): reason for verb, reason in refused.items()}
    except BackendError as error:
        reason = f"no node was free to find out whether it can be done there ({error})"
        return dict.fromkeys((*VERBS, Verb.STORAGE), reason)
