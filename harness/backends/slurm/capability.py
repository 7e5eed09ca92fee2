"""The verbs on the nodes of a Slurm, for this user."""

from __future__ import annotations

import contextlib
import os

from harness.backends.contract import Capability, Verb
from harness.backends.network_calls import VERBS
from harness.backends.slurm import eviction
from harness.backends.slurm.engine import Slurm
from harness.backends.slurm.eviction import site_options
from harness.backends.slurm.job_network import SIDECAR, TAKES_ROOT
from harness.backends.slurm.step_line import StepLine
from harness.errors import BackendError
from harness.node import boot, gpu_health, owner_names, skew

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


def capability_of(slurm: Slurm) -> Capability:
    verbs = {Verb.SIGNAL, Verb.FREEZE, Verb.CPU, Verb.MEMORY, Verb.FILES}
    missing = LACKS | _node_refusals(slurm)
    verbs |= {*VERBS, Verb.STORAGE} - set(missing)
    for verb, reason in ((Verb.CLOCK, skew.why_not()), (Verb.GPU, gpu_health.why_not())):
        if reason:
            missing[verb] = reason
        else:
            verbs.add(verb)
    if slurm.takes_nodes:
        verbs |= {Verb.KILL, Verb.REPLACE}
    else:
        reason = "only root or the SlurmUser may set a node down; CHAOS_SLURM_POWER may name a command that can"
        missing |= {Verb.KILL: reason, Verb.REPLACE: reason}
    if reason := eviction.why_not(slurm):
        missing[Verb.EVICT] = reason
    else:
        verbs |= {Verb.EVICT, Verb.REPLACE}
    missing = {verb: why for verb, why in missing.items() if verb not in verbs}
    return Capability(True, f"{slurm.label}, {slurm.count_nodes()} nodes", frozenset(verbs), missing)


def _node_refusals(slurm: Slurm) -> dict[Verb, str]:
    """Returns the kernel's refusals, tried on one node for a moment."""
    try:
        with owner_names.temporary_folder() as folder:
            name = f"--job-name=chaos-{owner_names.new_name(PROBE)}"
            where = ("--nodes=1", f"--immediate={PROBE_S}", f"--time={PROBE_MINUTES_MAX}", name, *site_options())
            # From the harness's own source: nothing of a run is there that could hold what is delivered.
            line = StepLine(slurm, where, boot.place(), SIDECAR, (), folder / "probe.log")
            with contextlib.closing(line):
                return _network_refusals(line) | _storage_refusals(line)
    except BackendError as error:
        reason = f"no node was free to find out whether it can be done there ({error})"
        return dict.fromkeys((*VERBS, Verb.STORAGE), reason)


def _network_refusals(line: StepLine) -> dict[Verb, str]:
    if os.geteuid() != 0:
        return dict.fromkeys(VERBS, TAKES_ROOT)
    place = {"address": "127.0.0.1", "control": "", "others": []}
    refused: dict[str, str] = line.call("examine", PROBE_S, place=place)
    return {Verb(verb): reason for verb, reason in refused.items()}


def _storage_refusals(line: StepLine) -> dict[Verb, str]:
    reason: str = line.call("storage.examine", PROBE_S)
    return {Verb.STORAGE: reason} if reason else {}
