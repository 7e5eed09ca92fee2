"""A day of one strike at a job that somebody else started, through the command line, and what came of it."""

import json
import pathlib
import sys
from typing import Any

TRAINER = pathlib.Path(__file__).with_name("attached_trainer.py")
PLAN = """version: 1
name: one-strike
title: One strike
progress: {{log: 'step (\\d+)', within: 10m}}
entries:
  - {{strike: {verb}, lasts: {lasts}}}
"""


def chaos(job: str, folder: pathlib.Path, verb: str, lasts: str) -> list[str]:
    """The command for it; `job` is what `--attach` takes."""
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.format(verb=verb, lasts=lasts))
    words = ["gameday", "--attach", job, str(plan), "--reports", str(folder / "reports")]
    return [sys.executable, "-m", "harness", *words]


def told(folder: pathlib.Path) -> dict[str, Any]:
    (report,) = (folder / "reports").glob("*/attached-report.json")
    return json.loads(report.read_text())
