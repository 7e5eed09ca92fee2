"""Can this run be judged by its steps at all? A job that tells none does not fail for that."""

from __future__ import annotations

from harness.timeline.timeline import Timeline

NO_STEPS = "the log holds no step of the job, so its progress is not known"
APART = "the steps cannot be followed: a process resumed from an unknown step, or is not observed any more"


def blindness(run: Timeline, fault_free: Timeline | None) -> str:
    """Why nothing that depends on steps can be judged, or an empty text. A job that tells none although its fault-free
    run does has done none."""
    if not len(run.steps) and (fault_free is None or not len(fault_free.steps)):
        return NO_STEPS
    return APART if run.apart else ""
