"""Finds the commit of the project under test, in the git checkout in which the harness was started."""

import hashlib
import os
import pathlib
import re
import subprocess

LIMIT_S = 2.0
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")


def commit_of(directory: pathlib.Path) -> str | None:
    """Returns the commit that is checked out, with `-dirty` after it if tracked files have changed since.

    Returns `None` outside of a checkout, without git, and if git takes longer than `LIMIT_S` seconds. Runs no hook or
    program of the checkout, and writes nothing.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None or not _COMMIT.match(commit):
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return f"{commit}-dirty" if changed else commit


def diff_digest(directory: pathlib.Path) -> str | None:
    """Returns a digest of the uncommitted changes of tracked files. Runs with equal commits and equal digests had equal
    code. Returns `clean` if no tracked file is changed, and `None` if git fails."""
    changed = _git(directory, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "--binary")
    if changed is None:
        return None
    return hashlib.sha256(changed.encode()).hexdigest()[:16] if changed else "clean"


def _git(directory: pathlib.Path, *words: str) -> str | None:
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(directory), *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
