"""Where a run's evidence lies: its own events, its twin's and its calibration runs', all inside the run's folder."""

from __future__ import annotations

import os
import pathlib
import shutil

from harness.judge.score import Evidence
from harness.timeline import timeline

TWIN = "twin"
CALIBRATION = "calibration-"


def load_evidence(run_dir: pathlib.Path) -> Evidence:
    """Raises `EventLogError` when the run's own log cannot be read."""
    twin = run_dir / TWIN
    return Evidence(
        run=timeline.load(run_dir),
        twin=timeline.load(twin) if (twin / "events").is_dir() else None,
        calibration=[timeline.load(path) for path in sorted(run_dir.glob(CALIBRATION + "*"))],
    )


def attach(run_dir: pathlib.Path, name: str, other: pathlib.Path) -> None:
    """Puts another run's events into `run_dir/name`, by hard links where the file system has them."""
    target = run_dir / name / "events"
    target.mkdir(parents=True)
    for file in sorted((other / "events").glob("*.jsonl")):
        try:
            os.link(file, target / file.name)
        except OSError:
            shutil.copy2(file, target / file.name)
