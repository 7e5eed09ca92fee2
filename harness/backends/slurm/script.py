"""Makes the `sbatch` arguments and the two shell scripts that run a workload as a Slurm job.

A run is one job, with one task on every node. When a job has lost a node, Slurm starts the job again as a whole
(`--requeue`). Each restart replaces every node by its next incarnation, whose number is Slurm's restart count plus one.

The scripts contain no facts about this machine, but read such facts from environment variables that are set at
submission.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.backends import run_folder
from harness.backends.contract import PLACEHOLDER, PLACEHOLDERS, Launch, fill_placeholders
from harness.backends.run_folder import CONTROL
from harness.node import boot

ALIVE = "slurm/alive"  # in the run's folder: the harness writes something new to it every few seconds
SILENT_S_MAX = 180  # so long the harness may be silent: then the job ends by itself
NOTICE_S = 60  # before a time limit, if the site sets one; at a preemption the signal comes at once


@dataclass(frozen=True)
class Submission:
    """The contents of a job submission to Slurm: arguments of `sbatch`, scripts and environment variables. `arguments`
    contain the placeholders `{run_id}` and `{run_dir}`; `files` maps the names of scripts to their contents."""

    arguments: tuple[str, ...]
    files: dict[str, str]
    env: dict[str, str]


_BATCH = """\
#!/bin/bash
# The whole job: this script on the first node, one task on every node. After the loss of a node Slurm starts it anew.
export CHAOS_INCARNATION=$((${SLURM_RESTART_COUNT:-0} + 1))
CHAOS_ADDRESSES=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N=%o' | sort -u)
CHAOS_CONTROL=$(sed -n "s/^$SLURMD_NODENAME=//p" <<<"$CHAOS_ADDRESSES")
export CHAOS_ADDRESSES CHAOS_CONTROL
# A harness that was killed together with what undoes its doings ends nothing any more.
{watch} scancel "$SLURM_JOB_ID" </dev/null &
until [ -e "$CHAOS_RUN_DIR/slurm/go" ]; do sleep 0.05; done
{control}
size=$SLURM_JOB_NUM_NODES # smaller than it was submitted with, when a lost node will not come back
srun --nodes="$size" --ntasks="$size" --ntasks-per-node=1 --export=ALL --mpi=none --cpu-bind=none --input=none \\
    --output=none --kill-on-bad-exit=0 --wait=0 bash "$CHAOS_RUN_DIR/slurm/task.sh" &
tasks=$!

# A notice (time limit, preemption) reaches this script alone; Slurm is asked to hand it on to all tasks.
noticed= again=yes
trap 'noticed=yes again=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
while [ -n "$again" ]; do
    again=
    wait $tasks
    ended=$?
    [ $ended -eq 127 ] || code=$ended
done
# Saved and left because of the notice: asks to be started again. (With code 0 Slurm would call the job done.)
if [ -n "$noticed" ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$code"
"""

_CONTROL = """
# Beside the tasks, on the node of this script: no better place survives, as the loss of any node restarts the job.
control=$CHAOS_CONTROL
{start} control \\
    {words} </dev/null &
"""

_TASK = """\
#!/bin/bash
# The one task of a node.
address=$(sed -n "s/^$SLURMD_NODENAME=//p" <<<"$CHAOS_ADDRESSES")
control=$CHAOS_CONTROL
exec {start} "node$SLURM_NODEID" \\
    {words} </dev/null >>"$CHAOS_RUN_DIR/logs/slurm.log" 2>&1
"""


def _start(module: str) -> str:
    words = shlex.join(boot.command("{python}", "{source}", f"harness.node.{module}"))
    return words.replace("'{python}'", '"$CHAOS_PYTHON"').replace("'{source}'", '"$CHAOS_DELIVERED"')


_START = _start("slurm_task")
_WATCH = f'{_start("slurm_watch")} "$CHAOS_RUN_DIR/{ALIVE}" {SILENT_S_MAX}'

_VARIABLES = {
    "address": "$address",
    "control": "$control",
    "head": "$CHAOS_CONTROL",  # the batch script runs on the first node
    "index": "$SLURM_NODEID",
    "incarnation": "$CHAOS_INCARNATION",
    "python": "$CHAOS_PYTHON",
    "run_dir": "$CHAOS_RUN_DIR",
}
_CONTROL_HAS = ("control", "head", "python", "run_dir")


def render(workload: Launch) -> Submission:
    """Makes the job submission to Slurm for a workload. Raises `UsageError` if a command uses a placeholder that has no
    value for this command."""
    arguments = (
        "--job-name=chaos-{run_id}",
        "--comment=chaos-harness",
        f"--nodes={workload.nodes}",
        "--ntasks-per-node=1",
        "--exclusive",
        "--requeue",
        f"--signal=B:USR1@{NOTICE_S}",
        "--open-mode=append",
        "--output={run_dir}/logs/slurm.log",
        "--export=ALL",
    )
    control = ""
    if workload.control is not None:
        words = f"{_places(workload, CONTROL, ())} {shell_words(workload.control, _CONTROL_HAS)}"
        control = _CONTROL.replace("{start}", _START).replace("{words}", words)
    words = f"{_places(workload, 'node', workload.mounts)} {shell_words(workload.command, PLACEHOLDERS)}"
    files = {
        "batch.sh": _BATCH.replace("{watch}", _WATCH).replace("{control}", control),
        "task.sh": _TASK.replace("{start}", _START).replace("{words}", words),
    }
    return Submission(arguments, files, env=dict(workload.env))


def _places(workload: Launch, node: str, mounts: Sequence[str]) -> str:
    return shlex.join([*mounts, "--", *run_folder.folders_of(workload, node), "--"])


def until_silent(python: str, source: str, run_dir: str) -> str:
    """Returns a shell command that waits until the harness of a run has shown no sign of life for `SILENT_S_MAX`
    seconds."""
    words = [f"{run_dir}/{ALIVE}", str(SILENT_S_MAX)]
    return shlex.join(boot.command(python, source, "harness.node.slurm_watch", words))


def shell_words(command: Sequence[str], allowed: Collection[str]) -> str:
    """Returns a command as shell text, in which placeholders are shell variables and all other text is quoted."""
    fill_placeholders(command, dict.fromkeys(allowed, ""))  # refuses what has no value here
    return " ".join(_shell_word(word) for word in command)


def _shell_word(word: str) -> str:
    text, *found = PLACEHOLDER.split(word)
    quoted = [shlex.quote(text) if text else ""]
    for escaped, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
        quoted.append(shlex.quote(f"{{{escaped}}}") if escaped else f'"{_VARIABLES[name]}"')
        quoted.append(shlex.quote(text) if text else "")
    return "".join(quoted) or "''"
