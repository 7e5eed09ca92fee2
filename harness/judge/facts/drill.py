"""The restore drill: the job's command, started once more on a copy of its checkpoints before the nodes are released.

Its events lie in `RUN/drill/events/`, apart from those that are scored; what the harness saw of it is in the harness's
own log (`drill.started`, `drill.finished`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import EventLogError
from harness.log import reading

FOLDER = "drill"


@dataclass(frozen=True)
class DrillLog:
    """What the drill's workers told: (rank, step) of every `restored`, and how many ranks there were to be."""

    restored: Sequence[tuple[int, int]] = ()
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
    restored = [
        (_number(writer.header.get("rank")), _number(event.get("step")))
        for writer in trainers
        for event in writer.events
        if event.get("event") == "restored"
    ]
    sizes = [_number(writer.header.get("world_size")) for writer in trainers]
    return DrillLog(restored, max(sizes, default=0))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
