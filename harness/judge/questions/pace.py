"""Is the job as fast as before its recovery? See `harness.judge.facts.usual`. And did it stand still, for so long while
nothing disturbed it that something happened that no fault explains?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from harness.judge.facts import by_time
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import FAST_BEFORE, OTHERS_MOST, SLOWDOWN_MAX, Pace, Times, exit_ns, others_share
from harness.judge.score import Bounds, Expectation, Measured, S, Verdict, line
from harness.judge.verdict import UNTRUE, Claim, Code, Doubt, Ground, Kind, unknown
from harness.units import format_duration

STILL_LEAST_NS = 10 * S  # a host may be busy for a moment
STILL_FACTOR = 5  # of the longest time between two steps without a fault: a save, an evaluation
TOO_FAST = 1 / 4  # of the usual time nobody needs for the same steps


class PaceBounds(Bounds):
    """How fast the job must be once it has recovered."""

    max_slowdown: float = Field(SLOWDOWN_MAX, ge=1, description="So many times slower than without a fault.")


class PaceScore(Measured):
    name = "pace"
    order = 40
    Bounds = PaceBounds
    by_default = "pace"

    def values(self, evidence: Analysis) -> dict[str, Any]:
        if isinstance(evidence.pace, str):
            return {"slowdown": None, "steps": 0}
        names = ("slowdown", "median", "at_least", "steps", "before", "best", "slowest", "worst")
        return {name: getattr(evidence.pace, name) for name in names}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: PaceBounds) -> Sequence[Expectation] | str:
        pace, bound = evidence.pace, bounds.max_slowdown
        if isinstance(pace, str):
            return pace
        reason, code = "", ""
        if pace.is_slow(bound) or pace.was_faster(bound):
            reason = f"{_figures(pace)} times slower, the median step {pace.median:.2f} times"
            code = Code.PACE_MAX_SLOWDOWN
        elif pace.was_slow(bound):
            reason = f"{_figures(pace)} times slower, and {pace.slowest:.2f} times now and then"
            code = Code.PACE_SLOW_AGAIN
        elif not pace.known:
            return "no fault-free run had as many ranks as the job had at the end"
        elif pace.at_least > bound and pace.before > bound:
            return f"the job was already {pace.before:.2f} times slower than its fault-free run before the first fault"
        observed = f"{pace.slowdown:.2f} ×, at least {pace.at_least:.2f} ×"
        told = line(
            "pace.max_slowdown", f"≤ {bound:g} ×", observed, reason, Ground(Kind.DURATION, of=pace, bound=bound)
        )
        if not reason and pace.was_faster_now_and_then(bound):
            times = pace.slowest / pace.before
            reason = f"{_figures(pace)} times slower, but now and then {times:.2f} times slower than before the fault"
            doubtful = replace(told, verdict=Verdict.INCONCLUSIVE, reason=reason, doubt=Doubt.FAULT_FREE_SLOW)
            return [replace(doubtful, code=Code.PACE_SLOW_AGAIN)]
        return [replace(told, code=code)]

    def claims(self, evidence: Analysis) -> Iterator[Claim]:
        yield from _stood_still(evidence)
        yield from _told_too_fast(evidence)


def _figures(pace: Pace) -> str:
    took, usual = format_duration(pace.taken), format_duration(pace.usual)
    text = f"{pace.steps} steps after the recovery took {took}, and {usual} in the fault-free run"
    return f"{text}: {pace.slowdown:.2f}"


def _stood_still(evidence: Analysis) -> Iterator[Claim]:
    """The longest time between two steps of one world while nothing disturbed the job, if that was too long."""
    run = evidence.run
    usual = max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)
    steps = Times.of(run)
    if usual is None or not len(steps.end):
        return
    apart = steps.end - steps.begin
    peace = by_time.quiet(steps.begin, steps.end, evidence.disturbed)
    longest = int(np.where(peace, apart, 0).argmax())
    if peace[longest] and apart[longest] > max(STILL_LEAST_NS, STILL_FACTOR * usual):
        text = f"the job stood still for {format_duration(int(apart[longest]))} after step {steps.after[longest]}"
        longer = f"at most {format_duration(usual)} in the fault-free run"
        yield unknown(Code.JOB_STOOD_STILL, f"{text}, while no fault was at work ({longer})")


def _told_too_fast(evidence: Analysis) -> Iterator[Claim]:
    """After the recovery the steps are told at a pace that the job never had; or faster than before, and the time that
    this saves comes after the last one, where the harness sees the end."""
    pace = evidence.pace
    if isinstance(pace, str) or not pace.known:
        return
    if any(others_share(other, other.begin, other.end) > OTHERS_MOST for other in evidence.usual.runs):
        return  # of the host; a fault-free run may then have been as slow as it likes
    usual = min(1.0, pace.before)
    factor, saved = max(pace.slowdown, pace.median), pace.usual * usual - pace.taken
    taken, without = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
    hidden = 0 if taken is None or without is None else max(0, taken - without)
    if factor < TOO_FAST * usual or (factor < FAST_BEFORE * usual and 2 * hidden > saved):
        text = f"{_figures(pace)} times as long; the job ended {format_duration(hidden)} later than usual after"
        yield unknown(Code.PACE_TOO_FAST, f"{text} the last: {UNTRUE}, or the host was busier in the fault-free run")


SCORES = (PaceScore(),)
