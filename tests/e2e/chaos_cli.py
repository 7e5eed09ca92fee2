"""Calling the command line as people do, and looking for what it may have left behind."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

SHORT = """\
version: 1
name: short
title: A short run for the tests
workload: {nodes: 2, steps: 60, checkpoint: {every_steps: 10}}
faults:
  - id: kill
    fault: rank_kill
    when: {step: 35}
    target: {rank: 1}
expect:
  recovery_time: {max: 60s}
  wasted_gpu_hours: {max_percent_by_faults: 90}
  loss_continuity: {mode: exact}
abort: {if_no_step_for: 60s, wall_clock: 4m}
"""


@dataclass
class Done:
    code: int
    out: str
    reports: pathlib.Path

    @property
    def run_dirs(self) -> list[pathlib.Path]:
        return sorted(path.parent for path in self.reports.glob("*/plan.json"))

    @property
    def report(self) -> dict[str, Any]:
        (run_dir,) = self.run_dirs
        report: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
        return report


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "harness", *map(str, words)]


def environment(reports: pathlib.Path, **more: str) -> dict[str, str]:
    return {**os.environ, "CHAOS_REPORTS": str(reports), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


def chaos(reports: pathlib.Path, *words: object, limit_s: float = 280, **env: str) -> Done:
    done = subprocess.run(
        command(*words), env=environment(reports, **env), capture_output=True, text=True, timeout=limit_s, cwd=ROOT
    )
    return Done(done.returncode, done.stdout + done.stderr, reports)


def leftovers() -> list[str]:
    """Everything on this machine that carries the harness's marks and was not there before these tests."""
    return [found for found in _marked() if found not in _EARLIER]


def _marked() -> list[str]:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = b"CHAOS_RUN_ID=" in (entry / "environ").read_bytes()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marked and state not in "ZX":
            found.append(f"process {entry.name}: {line}")
    found += [
        f"mount {line}" for line in pathlib.Path("/proc/mounts").read_text().splitlines() if "chaos" in line.split()[0]
    ]
    found += [f"cgroup {path}" for path in pathlib.Path("/sys/fs/cgroup").glob("*/chaos-*@*")]
    return found


_EARLIER = frozenset(_marked())  # of a run that was killed together with all that would have undone it
