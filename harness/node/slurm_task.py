"""Runs a command of a Slurm job: restricts its view of the run's folder, passes SIGTERM on, and records its exit.

    slurm_task NAME MOUNT… -- FOLDER… -- COMMAND…

`MOUNT…` are the folders of the run whose storage can be disturbed, and `FOLDER…` are additional folders that the
command may write. This process and the command die with their parent process. Otherwise, processes of a killed script
could live on and keep the script's network port. Only the command has CHAOS_NODE in its environment, by which the
harness recognises the processes that it may signal.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Sequence

from harness.node import boot, kernel, node_paths, run_folder_view

EXIT_CANNOT = 126


def main(name: str, mounts: Sequence[str], folders: Sequence[str], command: Sequence[str]) -> None:
    run_dir, key = os.environ["CHAOS_RUN_DIR"], f"{name}.{os.environ['CHAOS_INCARNATION']}"
    _die_with(os.getppid())
    # Opened before the command's view of the folder is made, in which they could not be written.
    exits = os.open(f"{run_dir}/slurm/exits", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(f"{run_dir}/{node_paths.log_of(key)}", flags, 0o644)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    may_write = [node_paths.events_of(name), node_paths.answers_of(name), node_paths.log_of(key), *folders]
    if problem := _show(run_dir, key, mounts, may_write):
        os.write(log, f"{', '.join(mounts)}: cannot be made to be disturbed: {problem}\n".encode())
        _leave(exits, key, EXIT_CANNOT)
    _leave(exits, key, _run(name, command, log))


def _show(run_dir: str, key: str, mounts: Sequence[str], may_write: Sequence[str]) -> str:
    """Mounts the run's folder with the command's restricted view. Returns why a needed mount failed, or an empty
    text."""
    try:
        kernel.enter_mount_namespace()
        if mounts:
            from harness.node import slurm_storage

            slurm_storage.mount(key, [f"{run_dir}/{mount}" for mount in mounts])
    except Exception as error:
        if mounts:
            return f"{error}"
        _say(f"{key} has no mounts of its own ({error}): what runs there can write all of the run's folder")
        return ""
    try:
        run_folder_view.restrict(run_dir, may_write)
    except OSError as error:
        _say(f"{key} sees all of the run's folder as it is ({error}): what runs there can write all of it")
    return ""


def _run(name: str, command: Sequence[str], log: int) -> int:
    me, ended = os.getpid(), False
    child = os.fork()
    if child == 0:
        _die_with(me)
        _become(name, command, log)

    def hand_on(number: int, _frame: object) -> None:
        if not ended:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    ended = True
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(name: str, command: Sequence[str], log: int) -> None:
    os.setpgid(0, 0)
    for number in (1, 2):
        os.dup2(log, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    run_dir = os.environ["CHAOS_RUN_DIR"]
    marks = {"CHAOS_NODE": name, **node_paths.environment(run_dir, name)}
    run_folder_view.give_up_mounting()
    try:
        os.execvpe(command[0], list(command), boot.with_delivered({**os.environ, **marks}, boot.place()))
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be executed: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else EXIT_CANNOT)


def _die_with(parent: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _leave(exits: int, key: str, code: int) -> None:
    beside = f".{secrets.token_hex(8)}"  # a name that nobody can have put a link at
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=exits)
    os.write(file, str(code).encode())
    os.close(file)
    os.replace(beside, key, src_dir_fd=exits, dst_dir_fd=exits)
    sys.exit(code if code >= 0 else 128 - code)


def _say(text: str) -> None:
    print(f"slurm_task: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    mounts, words = words[: words.index("--")], words[words.index("--") + 1 :]
    folders, command = words[: words.index("--")], words[words.index("--") + 1 :]
    main(name, mounts, folders, command)
