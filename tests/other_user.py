"""Commands that run as an ordinary user, where the tests run as root."""

import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest


def as_user(user: int, groups: str = "") -> list[str]:
    """What stands before such a command."""
    identity = [f"--reuid={user}", f"--regid={user}", f"--groups={groups}" if groups else "--clear-groups"]
    # setpriv executes its command while it still has root's rights over files; what sh executes has them no more.
    return ["setpriv", *identity, "--inh-caps=-all", "sh", "-c", 'exec "$@"', "sh"]


def python_of(prefix: Sequence[str], check: str = "sys.version_info >= (3, 11)") -> str:
    """An interpreter that can be executed behind `prefix`: the tests' own may lie in a home directory."""
    for python in (sys.executable, "/usr/bin/python3"):
        words = [*prefix, python, "-c", f"import sys; assert {check}"]
        if shutil.which(python) and subprocess.run(words, capture_output=True).returncode == 0:
            return python
    pytest.fail(f"an ordinary user can execute neither {sys.executable} nor a Python in /usr/bin with {check}")
