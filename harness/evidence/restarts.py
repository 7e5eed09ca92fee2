"""Reads, from the event log of a restarted job, which step the job restored, and the losses of the steps after the
restore."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import EventLogError
from harness.log import reading

Losses = Mapping[tuple[int, int], float]  # (rank, step) → loss, the later one of a step done twice


@dataclass(frozen=True)
class Restart:
    """A restart of a job, as its event log describes it. `step` is the step that all ranks restored, or `None` if the
    ranks restored no common step. Without a logged restore, `step` is one less than the first logged step."""

    step: int | None
    told: bool  # it said that it passed a checkpoint over
    losses: Losses = field(default_factory=dict)
    failed_workers: bool = False
    tells: bool = True  # its restores name passed-over checkpoints, or say that there were none
    passed_over: Sequence[Mapping[str, Any]] = ()  # as told in `fallback`, with a `source` relative to its folder


def read_restart(folder: pathlib.Path) -> Restart:
    """Reads the event log of a restart from the folder of the restart. A restart without a readable event log counts as
    a restart that restored nothing."""
    try:
        log = reading.read(folder / "events")
    except EventLogError:
        return Restart(None, False)
    events = [event for writer in log.writers for event in writer.events]
    restored = [event for event in events if event.get("event") == "restored"]
    steps = {event["step"] for event in restored if isinstance(event.get("step"), int)}
    losses, first = _losses(log)
    if first is not None and (not restored or (len(steps) == 1 and first < min(steps))):  # an earlier step was restored
        steps = {first - 1}
    passed_over = list(_passed_over(restored, f"{folder}/"))
    failed = any(event.get("event") == "worker.exit" and event.get("code") for event in events)
    step, tells = steps.pop() if len(steps) == 1 else None, any("fallback" in event for event in restored)
    return Restart(step, bool(passed_over), losses, failed, tells, passed_over)


def _passed_over(restored: Sequence[Mapping[str, Any]], root: str) -> Iterator[Mapping[str, Any]]:
    items = (item for event in restored for item in event.get("fallback") or ())
    for told in (item for item in items if isinstance(item, Mapping)):
        source = str(told.get("path") or told.get("source") or "").removeprefix(root)
        yield {"step": told.get("step"), "source": source}


def _losses(log: reading.Log) -> tuple[Losses, int | None]:
    found: dict[tuple[int, int], float] = {}
    first: int | None = None
    for writer in (writer for writer in log.writers if writer.role == "trainer"):
        rank, numbers = writer.header.get("rank"), writer.steps["step"].tolist()
        if isinstance(rank, int):
            found.update({(rank, s): loss for s, loss in zip(numbers, writer.steps["loss"].tolist(), strict=True)})
        first = min([*numbers[:1], *([first] if first is not None else [])], default=None)
    return found, first


def apart(losses: Losses, usual: Losses) -> float | None:
    """Returns the largest relative difference between a loss in `losses` and the loss of the same rank and step in
    `usual`. Returns `None` if `losses` and `usual` have no logged loss of the same rank and step."""
    common = [(losses[key], usual[key]) for key in losses.keys() & usual.keys()]
    logged = ((one, other) for one, other in common if not (math.isnan(one) and math.isnan(other)))
    return max((_difference(one, other) for one, other in logged), default=None)


def _difference(one: float, other: float) -> float:
    if one == other:
        return 0.0
    found = abs(one - other) / max(abs(one), abs(other))
    return found if math.isfinite(found) else math.inf
