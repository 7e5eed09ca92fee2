"""Where a run's evidence lies: its own events, and those of its fault-free and calibration runs, in its folder.

The restore drill is the job's command, started once more on a copy of its checkpoints before the nodes are released.
Its events lie in `RUN/drill/events/`, apart from those that are scored; what the harness saw of it is in the harness's
own log (`drill.started`, `drill.finished`). The second restart is the same from the save before the last one, to the
end of the job: `RUN/second-restart/events/`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.errors import EventLogError
from harness.judge.facts import comparable
from harness.log import files, reading
from harness.timeline import timeline, window
from harness.timeline.joined import SCRATCH
from harness.timeline.timeline import Timeline

FAULT_FREE = "fault-free"
_FOLDERS = (FAULT_FREE, "twin")  # the second one: of older versions
CALIBRATION = "calibration-"
RESUMED = "resumed-"  # see `harness.campaign.resumed`
BEFORE, SAME = RESUMED + "before", RESUMED + "same"
DRILL = "drill"
SECOND = "second-restart"


class Restored(NamedTuple):
    """What a worker of the drill went on from, as it told it (-1: it told no step); and the first step that it did."""

    rank: int
    step: int
    source: str = ""
    first: int | None = None

    def is_of(self, step: int, stride: int) -> bool:
        """Whether its state is of this step, as it said, or else as its first step shows."""
        return self.step == step if self.step >= 0 else self.first is not None and step < self.first <= step + stride


@dataclass(frozen=True)
class DrillLog:
    """What the drill's workers told, and how many ranks there were to be."""

    restored: Sequence[Restored] = ()
    world_size: int = 0
    problem: str = ""  # why its log says nothing


@dataclass(frozen=True)
class Evidence:
    """All a score may look at. `calibration` holds further fault-free runs (other world sizes, repeats)."""

    run: Timeline
    fault_free: Timeline | None = None
    calibration: Sequence[Timeline] = ()
    drill: DrillLog | None = None  # what was started once more on a copy of the checkpoints
    resumed: Mapping[str, Timeline] = field(default_factory=dict)  # fault-free, by name: they stop at a save, or go on
    second_restart: Timeline | None = None  # the same on a copy without the last one

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
        drill=load_drill(folder),
        resumed={path.name: timeline.load(path) for path in sorted(folder.glob(RESUMED + "*"))},
        second_restart=_load_second(folder),
    )


def part_of(whole: Evidence) -> Evidence:
    """The same run beside those steps of its fault-free runs that it did."""
    fault_free = None if whole.fault_free is None else window.fault_free_part(whole.fault_free, whole.run)
    calibration = [window.fault_free_part(each, whole.run) for each in whole.calibration]
    return replace(whole, fault_free=fault_free, calibration=calibration, resumed={})


def attach(run_dir: pathlib.Path, name: str, other: pathlib.Path) -> None:
    """Copies another run's events into `run_dir/name`."""
    files.attach(other / "events", run_dir / name / "events")


def load_drill(run_dir: pathlib.Path) -> DrillLog | None:
    """`None` where no drill left a log."""
    events = run_dir / DRILL / "events"
    if not events.is_dir():
        return None
    try:
        log = reading.read(events)
    except EventLogError as error:
        return DrillLog(problem=str(error))
    trainers = [writer for writer in log.writers if writer.role == "trainer"]
    sizes = [_number(writer.header.get("world_size")) for writer in trainers]
    restored = [each for writer in trainers for each in _restored(writer)]
    return DrillLog(restored, max(sizes, default=0))


def _restored(writer: reading.Writer) -> Iterator[Restored]:
    rank, steps = _number(writer.header.get("rank")), writer.steps["step"]
    first = int(steps.min()) if len(steps) else None
    told = [event for event in writer.events if event.get("event") == "restored"]
    for event in told:
        step = 0 if event.get("source") == SCRATCH else -1
        yield Restored(rank, _number(event.get("step", step)), str(event.get("source") or ""), first)
    if first is not None and not told:
        yield Restored(rank, -1, first=first)


def _load_second(run_dir: pathlib.Path) -> Timeline | None:
    """`None` where it left no log that can be read."""
    try:
        return timeline.load(run_dir / SECOND) if (run_dir / SECOND / "events").is_dir() else None
    except EventLogError:
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
