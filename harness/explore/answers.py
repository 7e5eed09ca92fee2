"""Classifies how a job restored from a checkpoint folder in a state that a crash can leave."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.evidence.restarts import Losses, Restart, apart
from harness.judge.facts.restarts import passed_over_by

Paths = Mapping[int, Sequence[str]]  # step → where it was saved


class Came(enum.StrEnum):
    """The outcomes of a job's restore from a checkpoint folder in a state that a crash can leave. A save is called due
    if the save was finished before the crash."""

    RESUMED = "resumed"  # from a save that is due, or from a later one, with the losses of that save
    FELL_BACK = "fell back"  # to an older save than the last one that is due, with a word
    CRASHED = "crashed"
    SILENT = "loaded silently wrong"
    LOST = "lost durable progress"  # to an older save without a word, or to no save at all
    STALLED = "stalled"  # it neither restored anything in time nor ended
    UNKNOWN = "not known"


BAD = (Came.SILENT, Came.LOST, Came.CRASHED)
OPEN = (Came.STALLED, Came.UNKNOWN)
TOLERANCE = 10  # factor of the difference between the losses of two healthy runs, if that is not zero


FAR = 4  # least factor between the spread of the job's losses and the tolerance; else any losses look right


@dataclass(frozen=True)
class Answer:
    came: Came
    step: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class End:
    """The end of a restored job. `failed` is the reason why the job failed, or is empty. `followed` is True if the
    harness let the job go on until its next finished save. `late` is True if the job finished no save in time."""

    failed: str = ""
    followed: bool = False
    late: bool = False


@dataclass(frozen=True)
class Usual:
    """The losses and saves of the job without a crash. `run` holds the losses of the run that made the saves. `after`
    holds, by step, the losses of a restart from each undamaged save. A save is missing in `after` if no restart from
    the undamaged save restored its step. `paths` holds the paths of each save."""

    run: Losses
    after: Mapping[int, Losses]
    paths: Paths = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """Returns the allowed relative difference from the healthy job's losses, which is 0 if the job repeats its
        losses bit for bit."""
        return TOLERANCE * max((apart(losses, self.run) or 0.0 for losses in self.after.values()), default=0.0)

    @property
    def blind(self) -> bool:
        """Returns True if losses cannot distinguish a right restore from a wrong one, for example because all losses
        are alike."""
        told = [loss for loss in self.run.values() if math.isfinite(loss)]
        size = max(map(abs, told), default=0.0)
        spread = (max(told) - min(told)) / size if size else 0.0
        return FAR * self.tolerance >= spread

    def of(self, step: int) -> Losses:
        return {**self.run, **self.after.get(step, {})}

    def names(self, found: Restart, step: int) -> bool:
        paths = self.paths.get(step) or [""]
        return any(item.names(step, path) for item in passed_over_by(found.passed_over) for path in paths)


def answer(found: Restart, end: End, due: int, usual: Usual) -> Answer:
    """Classifies a job's restore after a crash. `due` is the step of the last save that the job reported as finished
    before the crash."""
    ended = end.failed
    if found.step is None:
        if ended or found.failed_workers:
            return Answer(Came.CRASHED, detail=ended or "its workers failed")
        if found.losses:
            return Answer(Came.UNKNOWN, detail="its ranks told different steps that they restored")
        return Answer(Came.STALLED, detail="it restored nothing in time")
    off = apart(found.losses, usual.of(found.step))
    if off is None and ended:
        return Answer(Came.CRASHED, found.step, f"it failed after the restore: {ended}")
    if off is None and found.step >= due:
        return Answer(Came.UNKNOWN, found.step, "it told no loss to compare after the restore")
    if off is not None and off > usual.tolerance and found.step:
        return _other_losses(found, off, usual)
    if ended and end.followed:
        return Answer(Came.CRASHED, found.step, f"it failed twice before its next save was finished: {ended}")
    if ended:
        return Answer(Came.UNKNOWN, found.step, f"it failed some steps after the restore: {ended}")
    given = _same_losses(found, found.step, due, usual)
    if end.late and given.came not in BAD:
        return Answer(Came.STALLED, found.step, "it restored, and finished no save in time")
    return given


def _same_losses(found: Restart, step: int, due: int, usual: Usual) -> Answer:
    named = usual.names(found, due)
    if usual.blind and (step >= due or (named and step)):
        return Answer(Came.UNKNOWN, step, "the job's losses cannot tell a right restore from a wrong one")
    if step >= due:
        return Answer(Came.RESUMED, step)
    missed = f"step {due} was saved before the crash"
    if named and not step:
        return Answer(Came.LOST, 0, f"{missed}; the job passed it over, and began from scratch")
    if named:
        return Answer(Came.FELL_BACK, step, f"{missed}; the job said that it passed it over")
    if not found.tells:
        return Answer(Came.UNKNOWN, step, f"{missed}; its trainer never says what it passes over")
    if found.told:
        return Answer(Came.LOST, step, f"{missed}, and the job said only that it passed over others")
    return Answer(Came.LOST, step, f"{missed}, and the job said nothing")


def _other_losses(found: Restart, off: float, usual: Usual) -> Answer:
    differ = f"its losses differ from those after step {found.step} by up to {off:.2g} of their size"
    if found.step not in usual.after:
        return Answer(Came.UNKNOWN, found.step, f"{differ}; no restart from that save undamaged shows what is usual")
    return Answer(Came.SILENT, found.step, differ)
