"""Can this run be judged by its steps at all? A job that tells none does not fail for that."""

from __future__ import annotations

from harness.timeline.timeline import Timeline

NO_STEPS = "no step of the job is in the log: what it did cannot be observed"
APART = "steps across restarts: a process went on from a state of a step that nobody knows"


def blindness(run: Timeline, fault_free: Timeline | None) -> str:
    """Why nothing that depends on steps can be judged, or an empty text. A job that tells none although its fault-free
    run does has done none."""
    if not len(run.steps) and (fault_free is None or not len(fault_free.steps)):
        return NO_STEPS
    return APART if run.apart else ""
