"""A workload as a Slurm job: arguments of `sbatch`, and the two shell scripts it runs. Pure.

One job for the whole run, one task on every node. Slurm starts a job that lost a node again *as a whole*
(`--requeue`): every node then begins its next incarnation, which is Slurm's restart count plus one.

Everything of this machine comes to the scripts in environment variables, given at submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.backend import PLACEHOLDERS, Workload, fill_placeholders

NOTICE_S = 60  # before a time limit, if the site sets one; at a preemption the signal comes at once


@dataclass(frozen=True)
class Request:
    """What is submitted. `arguments` hold `{run_id}` and `{run_dir}`; `batch` and `task` are shell scripts."""

    arguments: tuple[str, ...]
    batch: str
    task: str
    env: dict[str, str]


_BATCH = """\
#!/bin/bash
# The whole job: this script on the first node, one task on every node. After the loss of a node Slurm starts it anew.
export CHAOS_INCARNATION=$((${SLURM_RESTART_COUNT:-0} + 1))
CHAOS_ADDRESSES=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N=%o' | sort -u)
CHAOS_CONTROL=$(sed -n "s/^$SLURMD_NODENAME=//p" <<<"$CHAOS_ADDRESSES")
export CHAOS_ADDRESSES CHAOS_CONTROL
until [ -e "$CHAOS_RUN_DIR/slurm/go" ]; do sleep 0.05; done
{control}
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --export=ALL --mpi=none --cpu-bind=none --input=none \\
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

# Becomes the command that follows it, killed when its parent is: where Slurm tracks processes by descent alone, what a
# killed script leaves behind would live on, and hold its port.
_TIED = """
import ctypes, os, signal, sys
parent = os.getppid()
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == parent:
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"{sys.argv[1]}: cannot be executed: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""

_CONTROL = """
# Beside the tasks, on the node of this script: no better place survives, as the loss of any node restarts the job.
control=$CHAOS_CONTROL
(CHAOS_NODE=control exec "$CHAOS_PYTHON" -S -E -c "$CHAOS_TIED" {command}) \\
    >>"$CHAOS_RUN_DIR/logs/control.$CHAOS_INCARNATION.log" 2>&1 </dev/null &
"""

_TASK = """\
#!/bin/bash
# The one task of a node: runs the node's command, hands notices on to it, and records how it ended.
export CHAOS_NODE=node$SLURM_NODEID
exec </dev/null >>"$CHAOS_RUN_DIR/logs/slurm.log" 2>&1
log=$CHAOS_RUN_DIR/logs/$CHAOS_NODE.$CHAOS_INCARNATION.log
address=$(sed -n "s/^$SLURMD_NODENAME=//p" <<<"$CHAOS_ADDRESSES")
control=$CHAOS_CONTROL

set -m # a process group of its own: signals come to it through this script alone
"$CHAOS_PYTHON" -S -E -c "$CHAOS_TIED" {command} >>"$log" 2>&1 &
command=$!
trap 'again=yes; kill -TERM $command 2>/dev/null' TERM
again=yes
while [ -n "$again" ]; do
    again=
    wait -f $command
    ended=$?
    [ $ended -eq 127 ] || code=$ended
done
[ "$code" -le 128 ] || code=$((128 - code)) # what shells make of a signal
exits=$CHAOS_RUN_DIR/slurm/exits
echo "$code" >"$exits/.$CHAOS_NODE.$CHAOS_INCARNATION" && mv "$exits/.$CHAOS_NODE.$CHAOS_INCARNATION" \\
    "$exits/$CHAOS_NODE.$CHAOS_INCARNATION"
exit $((code < 0 ? 128 - code : code))
"""

_VARIABLES = {
    "address": "$address",
    "control": "$control",
    "index": "$SLURM_NODEID",
    "incarnation": "$CHAOS_INCARNATION",
    "python": "$CHAOS_PYTHON",
    "run_dir": "$CHAOS_RUN_DIR",
}
_CONTROL_HAS = ("control", "python", "run_dir")


def render(workload: Workload) -> Request:
    """Raises `UsageError` for a placeholder that has no value where it stands."""
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
        control = _CONTROL.replace("{command}", shell_words(workload.control, _CONTROL_HAS))
    return Request(
        arguments,
        batch=_BATCH.replace("{control}", control),
        task=_TASK.replace("{command}", shell_words(workload.command, PLACEHOLDERS)),
        env=dict(workload.env) | {"CHAOS_TIED": _TIED},
    )


def shell_words(command: Sequence[str], allowed: Collection[str]) -> str:
    """`command` as shell text in which the placeholders are variables and everything else is quoted."""
    fill_placeholders(command, dict.fromkeys(allowed, ""))  # refuses what has no value here
    return " ".join(_shell_word(word) for word in command)


def _shell_word(word: str) -> str:
    parts = re.split(r"\{(" + "|".join(PLACEHOLDERS) + r")\}", word)
    quoted = [f'"{_VARIABLES[part]}"' if place % 2 else shlex.quote(part) for place, part in enumerate(parts) if part]
    return "".join(quoted) or "''"
