"""Measures wasted GPU time: the wasted share of all allocated GPU time, and how much of this waste faults caused."""

from collections.abc import Iterator
from typing import Any

from harness.evidence.usual import UNMEASURABLE
from harness.judge.bounds import WASTED_BY_FAULTS, WasteBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult
from harness.judge.thresholds import UNATTRIBUTED_PERCENT_MAX
from harness.judge.verdict import Code, Figure, Ground, Kind, unknown
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike

UNITS = {"%": lambda value: f"{value:.1f} %", "GPU-s": lambda value: f"{value:.1f} GPU-s"}
ROWS = (  # key in `expect:`, figure, unit
    ("max_percent", "percent", "%"),
    ("max_percent_by_faults", "percent_by_faults", "%"),
    ("max_gpu_seconds", "gpu_seconds_wasted", "GPU-s"),
    ("max_gpu_seconds_by_faults", "gpu_seconds_wasted_by_faults", "GPU-s"),
)


def wasted_gpu_hours(evidence: Analysis, bounds: WasteBounds | None) -> ScoreResult:
    booked = evidence.ledger
    whole, by_faults, allocated = booked.wasted, booked.wasted_by_faults, booked.allocated or 1
    values = {"gpu_seconds_wasted": whole / S, "gpu_seconds_wasted_by_faults": by_faults / S}
    values |= {"percent": 100 * whole / allocated, "percent_by_faults": 100 * by_faults / allocated}
    if bounds is None:
        return ScoreResult(values)
    if not booked.allocated:
        none = unknown(Code.LEDGER_NO_GPU, "wasted_gpu_hours: no allocated GPU is in the log")
        return ScoreResult(values, reasons=[none])
    lacking = _unmeasured(evidence)
    summary = "" if lacking else f"{UNITS['%'](values['percent_by_faults'])} of GPU time wasted by faults"
    bounded = (bounds.max_percent_by_faults, bounds.max_gpu_seconds_by_faults) != (None, None)
    not_judged = [(WASTED_BY_FAULTS, lacking)] if lacking and not bounded else []
    share = 100 * booked.accounts["unattributed"] / booked.allocated
    text = f"wasted_gpu_hours: {share:.1f} % of the GPU time cannot be attributed to anything (1 % is allowed)"
    reasons = [unknown(Code.LEDGER_UNATTRIBUTED, text)] if share > UNATTRIBUTED_PERCENT_MAX else []
    return ScoreResult(values, [*_lines(evidence, values, bounds, lacking)], reasons, summary, not_judged)


def _lines(evidence: Analysis, values: dict[str, Any], bounds: WasteBounds, lacking: str) -> Iterator[Expectation]:
    # On every GPU, each window may begin by the clock of one host and end by the clock of another.
    margin_s = 2 * evidence.run.uncertainty_ns * len(evidence.windows) * evidence.run.largest_world / S
    margins = {"GPU-s": margin_s, "%": 100 * margin_s * S / evidence.ledger.allocated}
    slowed = [Ground(Kind.DURATION, of=each) for each in evidence.slowed.degraded]  # a fault may not be the cause
    for name, figure, unit in ROWS:
        if (allowed := getattr(bounds, name)) is None:
            continue
        by_faults, measured = name.endswith("by_faults"), values[figure]
        grounds = [Ground(Kind.DURATION, of=Figure(measured, margins[unit]), bound=allowed)]
        grounds += slowed if by_faults else []
        # An unmeasured fault makes the true waste higher: the measured waste can break the bound, but not meet it.
        least = lacking if by_faults and measured <= allowed else ""
        bound = Bound(f"wasted_gpu_hours.{name}", UNITS[unit], unit)
        yield bound.line(allowed, None if least else measured, least, *grounds)


def _unmeasured(evidence: Analysis) -> str:
    run = evidence.run
    if not run.reached_step:
        return "no step was completed"
    if run.plan.get("faults") and first_strike(run.faults) == NEVER:
        return "no fault struck"
    names = ", ".join(fault.id for fault in evidence.slowed.unmeasurable)
    return f"the slowdown by {names} {UNMEASURABLE}" if names else ""


SCORES = (Score("wasted_gpu_hours", 20, wasted_gpu_hours),)
