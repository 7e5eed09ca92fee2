"""Is the job soon over after its last step?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import exit_ns
from harness.judge.score import Bounds, DurationNs, Expectation, Measured, S, at_most, shown_ns
from harness.judge.verdict import Ground, Kind
from harness.units import format_duration

FACTOR = 3  # times as long as without a fault
LEAST_NS = 30 * S


class ExitBounds(Bounds):
    """How soon the job must end after its last step."""

    max: DurationNs | None = Field(
        None,
        description="From the last step to the end of all commands; else 30 s, or 3 times as long as without a fault.",
    )


class ExitTime(Measured):
    name = "exit_time"
    order = 44
    Bounds = ExitBounds
    by_default = "time of the exit"

    def values(self, evidence: Analysis) -> dict[str, Any]:
        taken, usual = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
        found = {"seconds": taken, "usual_seconds": usual}
        return {name: None if ns is None else ns / S for name, ns in found.items()}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: ExitBounds) -> Sequence[Expectation] | str:
        taken, usual = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
        if taken is None and evidence.run.outcome == "completed":
            return "a fault was active until the end, or the ends of the commands were not recorded"
        if taken is None:
            return "the job did not finish"
        limit = bounds.max if bounds.max is not None else max(LEAST_NS, FACTOR * (usual or 0))
        if taken > limit and usual is None and bounds.max is None:
            return "no fault-free run shows how long the exit takes"
        reason = f"the job took {format_duration(taken)} to end after its last step"
        return [at_most("exit_time.max", taken, limit, shown_ns, reason, rests_on=(Ground(Kind.DURATION),))]


SCORES = (ExitTime(),)
