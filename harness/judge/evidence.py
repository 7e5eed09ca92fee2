"""Where a run's evidence lies: its own events, its twin's and its calibration runs', all inside the run's folder."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.judge import fault_free
from harness.judge.drill import Drill, load_drill
from harness.timeline import timeline
from harness.timeline.timeline import Timeline

TWIN = "twin"
CALIBRATION = "calibration-"


@dataclass(frozen=True)
class Evidence:
    """All a score may look at. `calibration` holds further fault-free runs (other world sizes, repeats)."""

    run: Timeline
    twin: Timeline | None = None
    calibration: Sequence[Timeline] = ()
    drill: Drill | None = None  # what was started once more on a copy of the checkpoints

    @property
    def fault_free(self) -> list[Timeline]:
        """Those from which bands may be drawn."""
        others = (timeline for timeline in (self.twin, *self.calibration) if timeline)
        return [timeline for timeline in others if not fault_free.flaw(self.run, timeline)]


def load_evidence(run_dir: pathlib.Path) -> Evidence:
    """Raises `EventLogError` when the run's own log cannot be read."""
    twin = run_dir / TWIN
    return Evidence(
        run=timeline.load(run_dir),
        twin=timeline.load(twin) if (twin / "events").is_dir() else None,
        calibration=[timeline.load(path) for path in sorted(run_dir.glob(CALIBRATION + "*"))],
        drill=load_drill(run_dir),
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


def find_run(name: str, reports: pathlib.Path) -> pathlib.Path:
    """A run by path, by id, by the beginning of its id, or the newest one as `last`."""
    runs = sorted((path.parent for path in reports.glob("*/plan.json")), key=lambda path: path.stat().st_mtime)
    if name == "last" and runs:
        return runs[-1]
    given = pathlib.Path(name)
    if (given / "events").is_dir():
        return given
    matching = [run for run in runs if run.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"{name!r} is the beginning of {len(matching)} runs: {', '.join(run.name for run in matching)}"
        )
    known = ", ".join(run.name for run in runs[-5:]) or "none yet"
    raise UsageError(f"there is no run {name!r} in {reports}; newest: {known}")
