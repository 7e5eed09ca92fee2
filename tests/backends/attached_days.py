"""A day of strikes at a job that somebody else started, through the command line, and what came of it."""

import json
import pathlib
import sys
from typing import Any

TRAINER = pathlib.Path(__file__).with_name("attached_trainer.py")
PLAN = """version: 1
name: one-strike
title: One strike
progress: {log: 'step (\\d+)', within: 10m}
entries:
"""


def chaos(job: str, folder: pathlib.Path, verbs: str, lasts: str) -> list[str]:
    """The command for one strike after the other; `job` is what `--attach` takes."""
    plan = folder / "plan.yaml"
    plan.write_text(PLAN + "".join(f"  - {{strike: {verb}, lasts: {lasts}}}\n" for verb in verbs.split()))
    words = ["gameday", "--attach", job, str(plan), "--reports", str(folder / "reports")]
    return [sys.executable, "-m", "harness", *words]


def told(folder: pathlib.Path) -> dict[str, Any]:
    (report,) = (folder / "reports").glob("*/attached-report.json")
    return json.loads(report.read_text())
