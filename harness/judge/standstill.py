"""Did the job stand still while nothing disturbed it? Then something happened that no fault explains.

Judged in every run with a fault-free run, between steps of one world: outside faults at work, and outside outages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.judge.codes import Code
from harness.judge.facts import undisturbed
from harness.judge.facts.slowdown import step_times
from harness.judge.score import Finding, Verdict
from harness.timeline.timeline import Timeline
from harness.units import format_duration

LEAST_NS = 10_000_000_000  # a host may be busy for a moment
FACTOR = 5  # of the longest time between two steps without a fault: a save, an evaluation


def findings(run: Timeline, fault_free_runs: Sequence[Timeline]) -> Iterator[Finding]:
    """The longest standstill, if there is one."""
    if not fault_free_runs:
        return
    usual = max((int(step_times(each)[1].max(initial=0)) for each in fault_free_runs), default=0)
    rows, times = step_times(run)
    ends = run.progress.end[rows]
    peace = undisturbed.quiet(ends - times, ends, undisturbed.windows(run))
    longest = int(np.where(peace, times, 0).argmax()) if len(rows) else 0
    if len(rows) and peace[longest] and times[longest] > max(LEAST_NS, FACTOR * usual):
        step = int(run.progress.step[rows[longest] - 1])
        text = f"the job stood still for {format_duration(int(times[longest]))} after step {step}"
        longer = f"at most {format_duration(usual)} in the fault-free run"
        yield Finding(Verdict.INCONCLUSIVE, f"{text}, while no fault was at work ({longer})", Code.JOB_STOOD_STILL)
