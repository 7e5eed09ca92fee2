"""Game days of a light trainer in a process of their own."""

import os
import pathlib
import re
import subprocess
import sys

from waiting import until

ROOT = pathlib.Path(__file__).resolve().parents[2]


def chaos(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness", "gameday", *words]


class Going:
    """A game day in a process of its own."""

    def __init__(self, path: pathlib.Path, tmp_path: pathlib.Path):
        self.reports, self.out = tmp_path / "reports", tmp_path / "out.txt"
        words = chaos(str(path), "--reports", str(self.reports))
        env = os.environ | {"CHAOS_LOCAL_MODE": "plain", "COLUMNS": "300"}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)

    @property
    def run_dir(self) -> pathlib.Path:
        return next(path for path in self.reports.iterdir() if (path / "gameday.json").exists())

    def log(self) -> str:
        return "".join(path.read_text() for path in self.reports.glob("*/events/harness.jsonl"))

    def address(self, role: str) -> str:
        found = re.search(rf"page for the {role}: (\S+)", self.out.read_text())
        assert found is not None
        return found[1]

    def wait_for(self, word: str) -> None:
        until(lambda: word in self.log() or self.process.poll() is not None, word)
        assert word in self.log(), f"{word}: {self.out.read_text()}"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def note(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command("note", *words)

    def command(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = chaos(name, "last", *words, "--reports", str(self.reports))
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
