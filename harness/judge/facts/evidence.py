"""Where a run's evidence lies: its own events, and those of its fault-free and calibration runs, in its folder."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.errors import EventLogError
from harness.judge.facts import comparable
from harness.log import files
from harness.timeline import timeline, window
from harness.timeline.timeline import Timeline

FAULT_FREE = "fault-free"
_FOLDERS = (FAULT_FREE, "twin")  # the second one: of older versions
CALIBRATION = "calibration-"
RESUMED = "resumed-"  # see `harness.campaign.resumed`
BEFORE, SAME = RESUMED + "before", RESUMED + "same"
DRILL, SECOND = "drill", "second-restart"  # what the job's command did once more, after the run, on a copy of its saves


@dataclass(frozen=True)
class Evidence:
    """All a score may look at. `calibration` holds further fault-free runs (other world sizes, repeats)."""

    run: Timeline
    fault_free: Timeline | None = None
    calibration: Sequence[Timeline] = ()
    drill: Timeline | str = ""  # of the restore drill; or why it has no log that can be read
    resumed: Mapping[str, Timeline] = field(default_factory=dict)  # fault-free, by name: they stop at a save, or go on
    second_restart: Timeline | str = ""  # the same of the second restart

    @property
    def fault_free_runs(self) -> list[Timeline]:
        """Those from which bands may be drawn."""
        others = (timeline for timeline in (self.fault_free, *self.calibration) if timeline)
        return [timeline for timeline in others if not comparable.flaw(self.run, timeline)]


def load_evidence(run_dir: pathlib.Path, rehearsal: str | None = None) -> Evidence:
    """Of the whole job, or of what one of its rehearsals may be judged by: see `harness.timeline.window`.

    Raises `EventLogError` when the run's own log cannot be read, and `UsageError` for a rehearsal that is not in it.
    """
    whole = beside(window.load(run_dir, rehearsal), run_dir)
    return whole if rehearsal is None else part_of(whole)


def beside(run: Timeline, folder: pathlib.Path) -> Evidence:
    """A run beside the fault-free runs that this folder holds. Raises `EventLogError` when they cannot be read."""
    held = next((folder / name for name in _FOLDERS if (folder / name / "events").is_dir()), None)
    return Evidence(
        run=run,
        fault_free=timeline.load(held) if held else None,
        calibration=[timeline.load(path) for path in sorted(folder.glob(CALIBRATION + "*"))],
        drill=_drill(folder / DRILL),
        resumed={path.name: timeline.load(path) for path in sorted(folder.glob(RESUMED + "*"))},
        second_restart=_drill(folder / SECOND),
    )


def _drill(folder: pathlib.Path) -> Timeline | str:
    try:
        return timeline.load(folder) if (folder / "events").is_dir() else ""
    except EventLogError as error:
        return str(error)


def part_of(whole: Evidence) -> Evidence:
    """The same run beside those steps of its fault-free runs that it did."""
    fault_free = None if whole.fault_free is None else window.fault_free_part(whole.fault_free, whole.run)
    calibration = [window.fault_free_part(each, whole.run) for each in whole.calibration]
    return replace(whole, fault_free=fault_free, calibration=calibration, resumed={})


def attach(run_dir: pathlib.Path, name: str, other: pathlib.Path) -> None:
    """Copies another run's events into `run_dir/name`."""
    files.attach(other / "events", run_dir / name / "events")
