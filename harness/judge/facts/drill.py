"""Restarts after the run, on copies of what it saved: the restore drill from the last save, the second restart from the
one before, to the end of the job.

Their events lie in `RUN/drill/events/` and `RUN/second-restart/events/`, apart from those that are scored; what the
harness saw of them is in its own log (`drill.started`, `second_restart.finished`, …).
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.errors import EventLogError
from harness.log import reading
from harness.timeline import timeline
from harness.timeline.joined import SCRATCH
from harness.timeline.timeline import Timeline

FOLDER = "drill"
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


def load_drill(run_dir: pathlib.Path) -> DrillLog | None:
    """`None` where no drill left a log."""
    events = run_dir / FOLDER / "events"
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


def load_second(run_dir: pathlib.Path) -> Timeline | None:
    """`None` where it left no log that can be read."""
    try:
        return timeline.load(run_dir / SECOND) if (run_dir / SECOND / "events").is_dir() else None
    except EventLogError:
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
