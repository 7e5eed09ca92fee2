"""Classifies a restart on a damaged checkpoint by the logs of the restart and of the run that made the checkpoint."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.evidence.restarts import Losses, Restart, apart


class Came(enum.StrEnum):
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
class Answer:
    came: Came
    step: int | None = None
    detail: str = ""
    judged: bool = True  # its losses were compared with those of the undamaged run


def answer(
    restart: Restart, newest: int, usual: Losses, tolerance: float, tensor_bytes: int, ended: str, left: bool
) -> Answer:
    """Classifies a restart on a damaged checkpoint. `newest` is the step that a restart on undamaged checkpoints
    restores. `tolerance` is the allowed relative difference of the restart's losses from expected losses. `ended` says
    how the restarted job failed, or is empty. `left` is True if the job still had an undamaged save."""
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
    """Classifies a restart from scratch, but never as `loaded silently wrong`, because a start from scratch loads no
    save."""
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
