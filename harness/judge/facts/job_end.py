"""Tells which step a job reached, how its end came, and which fault last damaged a checkpoint."""

from dataclasses import dataclass

from harness.judge.thresholds import TIMEOUT_MIN_NS
from harness.timeline.lineage import NEVER
from harness.timeline.phase_names import phase_words
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import format_duration


def done(run: Timeline) -> str:
    return f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")


def reached(run: Timeline) -> str:
    last = run.segments[-1] if run.segments else None
    stuck = f", at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}" if last else ""
    return f"reached {done(run)}{stuck}"


def given_up_early(run: Timeline) -> bool:
    """Returns True if the harness aborted the job before any planned fault struck."""
    return run.outcome == "aborted" and bool(run.plan.get("faults")) and first_strike(run.faults) == NEVER


def spoiler(run: Timeline) -> FaultRecord | None:
    """Returns the last fault that damaged a checkpoint, or `None` if a process restored a checkpoint afterwards."""
    struck = [fault for fault in run.faults if fault.spoils and fault.injected is not None]
    if not struck or any((process.restored or 0) > (struck[-1].injected or 0) for process in run.processes):
        return None
    return struck[-1]


@dataclass(frozen=True)
class Waited:
    """The time from `since` to the end of `log`, which ended with a failure that a timeout may have caused."""

    log: Timeline
    since: int


def waited(log: Timeline, since: int) -> Waited | None:
    """Returns the wait before a failure that may be a timeout, or `None` if the failure came too soon for one."""
    return Waited(log, since) if log.end - since >= TIMEOUT_MIN_NS else None
