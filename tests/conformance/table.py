"""docs/backends.md: which backend has which verb, as they declare it, and how the conformance suite measures each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from conformance.checks import CHECKS
from conformance.places import PLACES

from harness.backends.contract import Verb, load_backend

IN_THE_LIFE_OF_A_RUN = {
    Verb.KILL: "processes left of the node, and steps in its name, after the kill: none",
    Verb.REPLACE: "a new incarnation of the place, which steps",
}
UNPROVEN = {"kubernetes": {Verb.NET_RATE, Verb.NET_DELAY, Verb.NET_LOSS, Verb.NET_PARTITION}}
HEAD = """\
# Backends and what they can do to a node

Made by `make docs` from what the backends declare; a test fails when it is out of date. `chaos doctor` tells what
this very machine takes away besides (no `/dev/fuse`, no C compiler, a kernel without a module …), with the remedy.

✓: the conformance suite (`tests/conformance/`) uses the verb on a real node of this backend, measures that it acts, undoes
it, and measures that it is undone. ○: the verb needs Chaos Mesh; the suite has never been run with it. A number: the verb
is refused before anything is launched, for the reason below. A new backend is one folder in `harness/backends/` that
declares what it lacks (`Backend.lacks`) and passes that suite.

"""


SETTINGS = """
## GPUs of this machine

On the local backend each virtual node gets GPUs of its own, one for each rank, while there are enough
(`CUDA_VISIBLE_DEVICES`). After that nodes share them: each is a host of its own to NCCL (`NCCL_HOSTID`), so its traffic
goes through the node's network and faults on that act on it. Ranks of one node never share a GPU; where there are fewer
GPUs than ranks on a node, the reference trainer uses the CPU. On GPUs it uses deterministic algorithms alone, so that a
restarted job can be compared bit for bit.

## Settings

| variable | what it says |
|---|---|
| `CHAOS_LOCAL_MODE` | `root`, `user` or `plain` instead of the best that works |
| `DOCKER_HOST` | the daemon; it must see the run's folder at the same path. Default: that of `make engines`, else the usual socket |
| `CHAOS_DOCKER_IMAGE` | another image than `chaos-node` (`make image`) |
| `CHAOS_DOCKER_GPUS=1` | a GPU for every rank |
| `CHAOS_DOCKER_EGRESS=1` | nodes reach the outside, an object store for instance |
| `SLURM_CONF` | the cluster. Default: that of `make engines`, else the site's |
| `CHAOS_SLURM_OPTIONS` | what the site wants on every `sbatch`: `--partition=… --account=… --gpus-per-node=8` |
| `CHAOS_SLURM_QUEUE_S` | how long to wait for the allocation (600) |
| `CHAOS_SLURM_EVICTION` | how Slurm evicts: `priority` (a job of a higher partition, with its GraceTime), `drain`, `requeue`, `signal` (`scancel --signal`). Default: the first that is possible here of `priority` and `drain` |
| `CHAOS_SLURM_EVICT_PARTITION` | whose jobs preempt ours, instead of one found by its PriorityTier |
| `CHAOS_SLURM_POWER` | a command that is called with `kill NODE RUN`, `boot NODE` and `heal RUN`; `none`: lost nodes are set down by `scontrol` |

On Slurm, a fault of storage acts on our own file system, which only the node's own task sees. Only runs with such a fault
give the task its own mounts, and these end with its last process. If you are not root, the task runs in a user namespace:
it keeps your ids, but all other ids are nobody there, and setuid programs (`sudo`) do nothing.

On Slurm a lost or evicted node ends the whole job. Slurm then starts the job again, and every place gets its next
incarnation. A fault on *all* traffic of a Slurm node disturbs only its traffic with the other nodes of the job, as Slurm
itself must still reach the node.
"""


def declared() -> dict[str, Mapping[Verb, str]]:
    """Column → verbs that are never there, with the reason."""
    columns = list(dict.fromkeys(place.name for place in PLACES))
    found: dict[str, Mapping[Verb, str]] = {}
    for name in dict.fromkeys(place.backend_name for place in PLACES):
        found |= load_backend(name).lacks()
    return {column: found[column] for column in columns if column in found}


def page() -> str:
    table = declared()
    reasons = list(dict.fromkeys(reason for lacks in table.values() for reason in lacks.values()))
    lines = ["| verb | " + " | ".join(table) + " | what is measured |", "|---|" + ":-:|" * len(table) + "---|"]
    for verb in Verb:
        cells = [_cell(verb, column, lacks, reasons) for column, lacks in table.items()]
        lines.append(f"| {verb.value} | {' | '.join(cells)} | {measured(verb)} |")
    notes = [f"{number}. {reason[0].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
    return HEAD + "\n".join([*lines, "", *notes]) + "\n" + SETTINGS


def _cell(verb: Verb, column: str, lacks: Mapping[Verb, str], reasons: list[str]) -> str:
    if verb in lacks:
        return str(reasons.index(lacks[verb]) + 1)
    return "○" if verb in UNPROVEN.get(column, ()) else "✓"


def measured(verb: Verb) -> str:
    return IN_THE_LIFE_OF_A_RUN.get(verb) or inspect.getdoc(CHECKS[verb]) or ""
