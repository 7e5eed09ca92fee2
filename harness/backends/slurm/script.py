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

from harness.backends.contract import PLACEHOLDERS, Workload, fill_placeholders

NOTICE_S = 60  # before a time limit, if the site sets one; at a preemption the signal comes at once


@dataclass(frozen=True)
class Request:
    """What is submitted. `arguments` hold `{run_id}` and `{run_dir}`; `files` are what it runs, by name."""

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

# Starts a command of the job, hands SIGTERM on to it, and records how it ended. Both die with what started them: where
# Slurm tracks processes by descent alone, what a killed script leaves would live on, and hold its port.
# The command alone carries CHAOS_NODE in its environment, the mark by which the harness finds what it may signal.
# Where folders are named, it sees these through file systems that can be disturbed.
_SUPERVISE = """\
import ctypes, os, signal, sys

name, *words = sys.argv[1:]
folders, command = words[: words.index("--")], words[words.index("--") + 1 :]
key = f"{name}.{os.environ['CHAOS_INCARNATION']}"
run_dir = os.environ["CHAOS_RUN_DIR"]


def die_with(parent):
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become_command():
    os.setpgid(0, 0)
    for number in (1, 2):
        os.dup2(log, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        os.execvpe(command[0], command, os.environ | {"CHAOS_NODE": name})
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be executed: {error.strerror}\\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def hand_on(number, frame):
    if not ended:
        os.kill(child, number)


def mount():
    sys.path.insert(0, os.environ["CHAOS_SOURCE"])
    from harness.backends.agent import slurm_storage as storage

    storage.mount(key, [f"{run_dir}/{folder}" for folder in folders])


def leave(code):
    exits = f"{run_dir}/slurm/exits"
    with open(f"{exits}/.{key}", "w") as file:
        file.write(str(code))
    os.replace(f"{exits}/.{key}", f"{exits}/{key}")
    sys.exit(code if code >= 0 else 128 - code)


die_with(os.getppid())
log = os.open(f"{run_dir}/logs/{key}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if folders:
    try:
        mount()
    except Exception as error:
        os.write(log, f"{', '.join(folders)}: cannot be made to be disturbed: {error}\\n".encode())
        leave(126)
me, ended = os.getpid(), False
child = os.fork()
if child == 0:
    die_with(me)
    become_command()
signal.signal(signal.SIGTERM, hand_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
ended = True
leave(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

_CONTROL = """
# Beside the tasks, on the node of this script: no better place survives, as the loss of any node restarts the job.
control=$CHAOS_CONTROL
"$CHAOS_PYTHON" -S -E "$CHAOS_RUN_DIR/slurm/supervise.py" control \\
    -- {command} </dev/null &
"""

_TASK = """\
#!/bin/bash
# The one task of a node.
address=$(sed -n "s/^$SLURMD_NODENAME=//p" <<<"$CHAOS_ADDRESSES")
control=$CHAOS_CONTROL
exec "$CHAOS_PYTHON" -S -E "$CHAOS_RUN_DIR/slurm/supervise.py" "node$SLURM_NODEID" \\
    {words} </dev/null >>"$CHAOS_RUN_DIR/logs/slurm.log" 2>&1
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
    mounts = shlex.join([*workload.mounts, "--"])
    files = {
        "batch.sh": _BATCH.replace("{control}", control),
        "task.sh": _TASK.replace("{words}", f"{mounts} {shell_words(workload.command, PLACEHOLDERS)}"),
        "supervise.py": _SUPERVISE,
    }
    return Request(arguments, files, env=dict(workload.env))


def shell_words(command: Sequence[str], allowed: Collection[str]) -> str:
    """`command` as shell text in which the placeholders are variables and everything else is quoted."""
    fill_placeholders(command, dict.fromkeys(allowed, ""))  # refuses what has no value here
    return " ".join(_shell_word(word) for word in command)


def _shell_word(word: str) -> str:
    parts = re.split(r"\{(" + "|".join(PLACEHOLDERS) + r")\}", word)
    quoted = [f'"{_VARIABLES[part]}"' if place % 2 else shlex.quote(part) for place, part in enumerate(parts) if part]
    return "".join(quoted) or "''"
