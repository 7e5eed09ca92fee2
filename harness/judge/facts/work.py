"""Tells which step a job had reached at a given time, and when the job's work ended."""

from functools import cached_property

import numpy as np

from harness.timeline.timeline import Ints, Timeline


class Work:
    """The progress of a run. For a run without steps, only the properties `has_steps` and `finished` can be used."""

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
        """Returns the latest of the times at which a step ended, a save was logged, or a worker started."""
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
