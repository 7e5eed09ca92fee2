"""Without the extra `gameday` the command says what is missing, and everything else works."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from harness.extras import how_to_install

pytestmark = pytest.mark.slow  # whole commands
ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKED = (
    "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; from harness.cli.main import main; main()"
)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["pre-launch"], 4, f"{how_to_install('gameday')}, or run it with --no-page"),
        (["pre-launch", "--dry-run"], 0, "Nothing was launched."),
    ],
)
def test_the_page_alone_needs_the_extra(words: list[str], code: int, told: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", BLOCKED, "gameday", *words]
    if "--dry-run" not in words:
        command += ["--reports", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"COLUMNS": "300"})
    assert done.returncode == code and told in done.stdout + done.stderr, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
