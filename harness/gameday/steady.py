"""Decides from live events whether a job is steady, for example whether all its steps take about the same time."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from harness.gameday.day_file import Steady
from harness.gameday.outage_phases import Span, newest_word
from harness.run.live_progress import LiveProgress

KEPT = 100_000
SPANS_MAX = 100
DONE_EVERY_NS = 250_000_000
NINE_OF_TEN = 0.9
STANDSTILL_TIMES = 20  # usual steps without a step from which the job stands
STANDSTILL_NS_MIN = 2 * 10**9


@dataclass
class Course:
    steps: deque[tuple[int, float | None, int]] = field(default_factory=lambda: deque(maxlen=KEPT))  # step, loss, took
    first_losses: list[float] = field(default_factory=list)
    done: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )  # (time, steps done, repeated ones too)
    begun_ns: int = 0
    outage: list[Span] = field(default_factory=list)  # told phases since the newest fault acted
    outage_open: bool = False
    _last_step: int = 0

    def note_outage(self, progress: LiveProgress, at_work: bool, now_ns: int, missing: bool = False) -> None:
        """Records the present phase of an outage. `at_work` is True while a fault acts or the job has not recovered
        from a fault. `missing` is True while a node of the job is missing."""
        if at_work and not self.outage_open:
            self.outage.clear()
        if self.outage and self.outage_open:
            self.outage[-1].end_ns = now_ns
        now = newest_word(progress), missing
        known = (self.outage[-1].phase, self.outage[-1].missing) if self.outage else None
        if at_work and known != now and len(self.outage) < SPANS_MAX:
            self.outage.append(Span(now[0], now_ns, now_ns, missing))
        self.outage_open = at_work

    def note(self, progress: LiveProgress, window: int, now_ns: int) -> None:
        self.begun_ns = self.begun_ns or now_ns
        if not self.done or now_ns - self.done[-1][0] >= DONE_EVERY_NS:
            done = max((worker.steps for worker in progress.workers.values()), default=0)  # a restart lowers none
            self.done.append((now_ns, done))
        before, self._last_step = self._last_step, progress.complete_step
        if self._last_step <= before:
            return
        loss, times = progress.loss, progress.step_times.get(0)
        self.steps.append((self._last_step, loss, times[-1][1] if times else 0))
        if loss is not None and len(self.first_losses) < window:
            self.first_losses.append(loss)

    def losses(self, count: int) -> list[float]:
        return [loss for _, loss, _ in list(self.steps)[-count:] if loss is not None]


def lacking(wanted: Steady, progress: LiveProgress, course: Course, since_ns: int, now_ns: int) -> str:
    """Returns why the job is not steady, by its steps since `since_ns`. An empty text means that the job is steady."""
    took = step_times_ns(progress, since_ns)[-wanted.steps :]
    if len(took) < wanted.steps:
        return f"{len(took)} of {wanted.steps} steps done"
    usual = statistics.median(took)
    if now_ns - progress.last_step_ns > max(STANDSTILL_TIMES * usual, STANDSTILL_NS_MIN):
        return "no step is running"
    inside = sum(abs(each - usual) <= usual * wanted.band / 100 for each in took)
    if inside < NINE_OF_TEN * wanted.steps:
        return f"only {inside} of {wanted.steps} steps took within {wanted.band:g} % of their median"
    if wanted.checkpoint and not progress.committed_step:
        return "no checkpoint is committed yet"
    if not wanted.loss_falling:
        return ""
    newest = course.losses(wanted.steps)
    if len(course.first_losses) < wanted.steps or len(newest) < wanted.steps // 2:
        return "too few losses are reported yet"
    first, last = statistics.fmean(course.first_losses), statistics.fmean(newest)
    return "" if last < first else f"the loss does not fall: {last:.4g} now, {first:.4g} at the start"


def step_times_ns(progress: LiveProgress, since_ns: int = 0) -> list[int]:
    """Returns the step times of the lowest rank that logs step times, the oldest step first."""
    rank = min(progress.step_times, default=None)
    return [] if rank is None else [took for seen, took in list(progress.step_times[rank]) if seen >= since_ns]
