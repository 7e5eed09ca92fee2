"""Finds which step a job had reached at a given time, how and when its work ended, and which fault last damaged a
checkpoint."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.judge.thresholds import TIMEOUT_MIN_NS
from harness.timeline.lineage import NEVER
from harness.timeline.phase_names import phase_words
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import FaultRecord, Ints, Timeline
from harness.units import format_duration


class Work:
    """The progress of a run. For a run without steps, only `has_steps`, `finished` and `furthest` can be used."""

    def __init__(self, run: Timeline):
        self._run = run

    @property
    def has_steps(self) -> bool:
        return len(self._run.steps) > 0

    @cached_property
    def finished(self) -> bool:
        return self._run.finished and self.has_steps

    @cached_property
    def last_end(self) -> int:
        return int(self._run.steps.end.max())

    @cached_property
    def last_begin(self) -> int:
        return int(self._run.steps.begin.max())

    @cached_property
    def over(self) -> int:
        """Returns the latest time at which a step ended, a checkpoint event was logged, or a worker started."""
        saved = (event["at"] for event in self._run.checkpoints)
        return int(max([self.last_end, *saved, *(process.started for process in self._run.processes)]))

    def furthest(self, moment: int) -> int:
        """Returns the highest step that had ended by the time `moment`, or 0 if no step had ended by then."""
        done = int(np.searchsorted(self._run.steps.end, moment, "right"))
        return int(self._furthest[done - 1]) if done else 0

    @cached_property
    def _furthest(self) -> Ints:
        return np.maximum.accumulate(self._run.steps.step)

    @cached_property
    def usual_ns(self) -> float:
        return float(np.median(self._run.steps.end - self._run.steps.begin))


def done(run: Timeline) -> str:
    return f"step {run.reached_step}" + (f" of {run.planned_steps}" if run.planned_steps else "")


def reached(run: Timeline) -> str:
    last = run.segments[-1] if run.segments else None
    stuck = f", at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}" if last else ""
    return f"reached {done(run)}{stuck}"


def given_up_early(run: Timeline) -> bool:
    return run.outcome == "aborted" and bool(run.plan.get("faults")) and first_strike(run.faults) == NEVER


def spoiler(run: Timeline) -> FaultRecord | None:
    """Returns the last fault that damaged a checkpoint, or `None` if a process restored a checkpoint afterwards."""
    struck = [fault for fault in run.faults if fault.spoils and fault.injected is not None]
    if not struck or any((process.restored or 0) > (struck[-1].injected or 0) for process in run.processes):
        return None
    return struck[-1]


@dataclass(frozen=True)
class Waited:
    """A wait from the time `since` to the end of `log`, which ended with a failure that a timeout may have caused."""

    log: Timeline
    since: int


def waited(log: Timeline, since: int) -> Waited | None:
    return Waited(log, since) if log.end - since >= TIMEOUT_MIN_NS else None
