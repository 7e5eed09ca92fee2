"""Runs a command of the site, such as a Slurm command or one that powers a host off, and waits for its end."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from harness.errors import BackendError

WORDS_MAX = 300  # of what a command says when it fails


def answer_of(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str:
    """Runs a command, and returns its output. Raises `BackendError` if the command is missing, fails or does not end in
    time."""
    path = shutil.which(command[0], path=environment.get("PATH"))
    if path is None:
        raise BackendError(f"{command[0]}: not found, or not executable")
    try:
        done = subprocess.run(
            [path, *command[1:]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{command[0]} did not answer within {limit_s:g} s") from error
    except OSError as error:
        raise BackendError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise BackendError(f"{' '.join(command[:3])}: {words.splitlines()[-1][:WORDS_MAX]}")
    return done.stdout
