"""Classifies a restart on a damaged checkpoint by the logs of the restart and of the run that made the checkpoint."""

from __future__ import annotations

import enum
import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import EventLogError
from harness.log import reading

Losses = Mapping[tuple[int, int], float]  # (rank, step) → loss, the later one of a step done twice


class Came(enum.StrEnum):
    """The class of a restart on a damaged checkpoint, such as a crash or damage that was loaded silently."""

    DETECTED = "detected"  # it told the damage, and yet had the newest state, perhaps from a copy
    FELL_BACK = "fell back"
    CRASHED = "crashed"
    HARMLESS = "harmless"  # no tensor was damaged, and the losses are those of the undamaged run
    SILENT = "loaded silently wrong"
    WRONG = "went on with other losses"  # after it had told the damage
    SCRATCH = "started from scratch"  # without a word, beside an undamaged save
    STALLED = "stalled"  # it neither restored anything in time nor ended
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Restart:
    """What the event log says about a restart. `step` is the step that all ranks restored, or `None` if the ranks
    restored no common step. Without a logged restore, `step` is one less than the first logged step."""

    step: int | None
    told: bool  # it said that it passed a checkpoint over
    losses: Losses = field(default_factory=dict)
    failed_workers: bool = False
    tells: bool = True  # its restores name passed-over checkpoints, or say that there were none


@dataclass(frozen=True)
class Answer:
    came: Came
    step: int | None = None
    detail: str = ""
    judged: bool = True  # its losses were compared with those of the undamaged run


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
    if not restored and first is not None:
        steps = {first - 1}
    told = any(event.get("fallback") for event in restored)
    failed = any(event.get("event") == "worker.exit" and event.get("code") for event in events)
    return Restart(
        steps.pop() if len(steps) == 1 else None, told, losses, failed, any("fallback" in event for event in restored)
    )


def _losses(log: reading.Log) -> tuple[Losses, int | None]:
    """Returns all losses in the log of a restart, by rank and step, and the first logged step."""
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
    `usual`. Returns `None` if `losses` and `usual` have no rank and step in common."""
    common = [(losses[key], usual[key]) for key in losses.keys() & usual.keys()]
    return max((_difference(one, other) for one, other in common), default=None)


def _difference(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    found = abs(one - other) / max(abs(one), abs(other))
    return found if math.isfinite(found) else math.inf


def answer(
    restart: Restart, newest: int, usual: Losses, tolerance: float, tensor_bytes: int, ended: str, left: bool
) -> Answer:
    """Classifies a restart on a damaged checkpoint. `newest` is the step that a restart on undamaged checkpoints
    restores. `tolerance` is the allowed relative difference between the restart's losses and the losses `usual`.
    `ended` says how the restarted job failed, or is empty. `left` is True if the job still had an undamaged save."""
    if restart.step is None:
        if ended or restart.failed_workers:
            return Answer(Came.CRASHED, detail=ended or "its workers failed")
        return Answer(Came.STALLED, detail="it restored nothing in time")
    off = apart(restart.losses, usual)
    if off is None and ended:
        return Answer(Came.CRASHED, restart.step, f"it failed after the restore: {ended}")
    other = off is not None and off > tolerance
    differ = f"losses differ by up to {off:.2g} of their size" if other else ""
    if not restart.step:
        return _from_scratch(restart, left, off is not None, differ)
    if other:
        detail = f"it reported the damage, but {differ}" if restart.told else differ
        return Answer(Came.WRONG if restart.told else Came.SILENT, restart.step, detail)
    if restart.step < newest or restart.told:
        return _passed_over(restart, Came.FELL_BACK if restart.step < newest else Came.DETECTED, off is not None)
    if off is None:
        came = Came.SILENT if tensor_bytes else Came.UNKNOWN
        return Answer(came, restart.step, "it reported no loss after the restore", judged=False)
    if tensor_bytes:
        return Answer(
            Came.SILENT, restart.step, f"{tensor_bytes} damaged bytes of tensors; no difference in the losses yet"
        )
    return Answer(Came.HARMLESS, restart.step, "the losses are the same")


def _from_scratch(restart: Restart, left: bool, judged: bool, differ: str) -> Answer:
    """Classifies a restart that began from scratch. A job that begins from scratch loads no save, so losses unlike
    those of an undamaged restart do not prove that the job loaded damaged data."""
    if left and not restart.told:
        if restart.tells:
            return Answer(Came.SCRATCH, 0, "it reported nothing, and an undamaged save was there", judged)
        return Answer(Came.UNKNOWN, 0, "it started from scratch; its trainer never reports a passed-over save", judged)
    if differ:
        return Answer(Came.UNKNOWN, 0, f"it started from scratch, and {differ}: two such runs may differ")
    return _passed_over(restart, Came.FELL_BACK, judged)


def _passed_over(restart: Restart, came: Came, judged: bool) -> Answer:
    said = "it reported the damage" if restart.told else "it did not report the damage"
    unjudged = "" if judged else "; its losses were not judged: it reported none to compare"
    return Answer(came, restart.step, said + unjudged, judged)
