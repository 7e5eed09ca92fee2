"""The same without root."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

import pytest
from e2e.chaos_cli import SHORT, environment
from other_user import as_user, python_of

NOBODY = 65534
AS_USER = as_user(NOBODY)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests ran as an ordinary user already")
def test_a_rank_kill_as_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "reports").mkdir()
        (path / "short.yaml").write_text(SHORT)
        for place in (path, path / "reports"):
            os.chown(place, NOBODY, NOBODY)
        python = python_of(AS_USER, f"sys.version_info[:2] == {sys.version_info[:2]}")
        packages = f"{os.environ['PYTHONPATH']}:{sysconfig.get_paths()['purelib']}"
        env = environment(path / "reports", PYTHONPATH=packages, HOME=folder, PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            [*AS_USER, python, "-m", "harness", "run", str(path / "short.yaml")],
            env=env,
            capture_output=True,
            text=True,
            cwd=folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr
