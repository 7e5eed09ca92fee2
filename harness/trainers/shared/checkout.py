"""The commit of the project under test: of the git checkout that the harness was started in."""

import hashlib
import os
import pathlib
import re
import subprocess

LIMIT_S = 2.0
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")


def commit_of(directory: pathlib.Path) -> str | None:
    """The commit that is checked out, with `-dirty` behind it when tracked files have changed since.

    `None` outside a checkout, without git, and where git takes longer than `LIMIT_S` seconds. Runs no hook and no
    program of the checkout, writes nothing.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None or not _COMMIT.match(commit):
        return None
    changed = _git(directory, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
    return f"{commit}-dirty" if changed else commit


def diff_digest(directory: pathlib.Path) -> str | None:
    """Names the uncommitted changes of tracked files: two runs with the same one had the same code. `clean` without
    any; `None` as in `commit_of`."""
    changed = _git(directory, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "--binary")
    if changed is None:
        return None
    return hashlib.sha256(changed.encode()).hexdigest()[:16] if changed else "clean"


def _git(directory: pathlib.Path, *words: str) -> str | None:
    """Returns git's output; `None` if it fails."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(directory), *words]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
