"""The same without root."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest
from chaos_cli import ROOT, SHORT, environment

NOBODY = 65534


def interpreter() -> tuple[str, str]:
    """An interpreter the user may execute, with the packages of this one: (path, PYTHONPATH)."""
    packages = sysconfig.get_paths()["purelib"]
    for python in (sys.executable, "/usr/bin/python3"):
        code = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}"
        if (
            shutil.which(python)
            and subprocess.run([*as_user(), python, "-c", code], capture_output=True).returncode == 0
        ):
            return python, f"{ROOT}:{packages}"
    pytest.fail(f"an ordinary user can execute neither {sys.executable} nor a Python of the same version in /usr/bin")


def as_user() -> list[str]:
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    # setpriv executes its command while it still has root's rights over files; what sh executes has them no more.
    return ["setpriv", *identity, "sh", "-c", 'exec "$@"', "sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests ran as an ordinary user already")
def test_a_rank_kill_as_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "reports").mkdir()
        (path / "short.yaml").write_text(SHORT)
        for place in (path, path / "reports"):
            os.chown(place, NOBODY, NOBODY)
        python, packages = interpreter()
        env = environment(path / "reports", PYTHONPATH=packages, HOME=folder, PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            [*as_user(), python, "-m", "harness", "run", str(path / "short.yaml")],
            env=env,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr
