"""Wasted GPU-hours: the exact ledger of all allocated GPU time, and the part of the waste that faults caused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.judge.facts import ledger
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.ledger import Ledger
from harness.judge.facts.usual import UNMEASURABLE, Band, Degraded
from harness.judge.score import Bounds, Expectation, Percent, S, Score, ScoreResult, at_most
from harness.judge.verdict import Claim, Code, Figure, Ground, Kind, unknown
from harness.theory import closed_forms
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import counted

UNATTRIBUTED_PERCENT_MAX = 1.0


class WasteBounds(Bounds):
    """Upper bounds: percent of allocated GPU time, or GPU-seconds; of all waste, or of what faults caused."""

    max_percent: Percent | None = None
    max_percent_by_faults: Percent | None = None
    max_gpu_seconds: float | None = None
    max_gpu_seconds_by_faults: float | None = None


class WastedGpuHours(Score):
    name = "wasted_gpu_hours"
    order = 20
    Bounds = WasteBounds

    def score(self, evidence: Analysis, bounds: WasteBounds | None) -> ScoreResult:
        run = evidence.run
        slow, booked = evidence.degraded, evidence.ledger
        values = _values(run, booked) | {"baseline": _baseline(run, evidence.usual.bands)}
        values["closed_forms"] = ledger.forecast(run, booked)
        if bounds is None:
            return ScoreResult(values)
        if not booked.allocated:
            return ScoreResult(
                values, reasons=[unknown(Code.LEDGER_NO_GPU, "wasted_gpu_hours: no allocated GPU is in the log")]
            )
        # Each window may begin by one host's clock and end by another's, on every GPU.
        doubt_s = 2 * run.uncertainty_ns * len(evidence.windows) * run.largest_world / S
        doubt_percent = 100 * doubt_s * S / booked.allocated
        lines = [
            _line(f"wasted_gpu_hours.{name}", values[key], bound, show, doubt, slow if "by_faults" in name else ())
            for name, key, show, doubt in (
                ("max_percent", "percent", _percent, doubt_percent),
                ("max_percent_by_faults", "percent_by_faults", _percent, doubt_percent),
                ("max_gpu_seconds", "gpu_seconds_wasted", _gpu_seconds, doubt_s),
                ("max_gpu_seconds_by_faults", "gpu_seconds_wasted_by_faults", _gpu_seconds, doubt_s),
            )
            if (bound := getattr(bounds, name)) is not None
        ]
        summary = f"{_percent(values['percent_by_faults'])} of GPU time wasted by faults"
        reasons = _doubts(booked)
        if bounds.max_percent_by_faults is not None or bounds.max_gpu_seconds_by_faults is not None:
            reasons += _unmeasurable(evidence.unmeasurable_slowdowns)
        return ScoreResult(values, lines, reasons, summary)


def _line(
    name: str, observed: float, bound: float, show: Callable[[Any], str], margin: float, slow: Sequence[Degraded]
) -> Expectation:
    """`margin`: by how much clocks that are not known exactly may mislead. `slow`: what the faults answer for, and may
    not have caused."""
    figure = Ground(Kind.DURATION, of=Figure(observed, margin), bound=bound)
    grounds = (figure, *(Ground(Kind.DURATION, of=interval) for interval in slow))
    line = at_most(name, observed, bound, show, unit="GPU-s" if "gpu_seconds" in name else "%")
    return replace(line, rests_on=grounds)


def _values(run: Timeline, booked: Ledger) -> dict[str, Any]:
    def percent(amount: int) -> float:
        return 100 * amount / booked.allocated if booked.allocated else 0.0

    values: dict[str, Any] = {
        "gpu_seconds_allocated": booked.allocated / S,
        "gpu_seconds_wasted": booked.wasted / S,
        "gpu_seconds_wasted_by_faults": booked.wasted_by_faults / S,
        "gpu_hours_wasted": booked.wasted / S / 3600,
        "gpu_hours_wasted_by_faults": booked.wasted_by_faults / S / 3600,
        "percent": percent(booked.wasted),
        "percent_by_faults": percent(booked.wasted_by_faults),
        "accounts": {name: amount / S for name, amount in booked.accounts.items()},
        "accounts_by_faults": {name: amount / S for name, amount in booked.by_faults.items() if amount},
        "accounts_ns": dict(booked.accounts),
        "goodput_percent": percent(booked.accounts["productive"]),
        "ettr": _ettr(run, booked),
        "badput": {name: amount / S for name, amount in closed_forms.badput(booked.accounts).items()},
    }
    price = (run.plan.get("scenario") or {}).get("price_per_gpu_hour")
    if price is not None:
        values["dollars_wasted"] = float(price) * values["gpu_hours_wasted"]
        values["dollars_wasted_by_faults"] = float(price) * values["gpu_hours_wasted_by_faults"]
    return values


def _ettr(run: Timeline, booked: Ledger) -> float | None:
    """Effective training time ratio: productive GPU time over what the planned GPUs could have given in this time.
    `None` where the plan is lost, or no GPU was allocated."""
    begin = min((slot.allocated for slot in run.slots), default=run.end)
    possible = (run.planned_size.world_size or 0) * (run.end - begin)
    return booked.accounts["productive"] / possible if possible else None


def _baseline(run: Timeline, bands: Mapping[int, Band]) -> str:
    """From what the baseline band of straggler drag was taken, world size by world size."""
    sizes = sorted({epoch.size for epoch in run.epochs})
    known = [f"{_steps_of_runs(bands[size])} at {_ranks(size)}" for size in sizes if size in bands]
    others = [f"none at {_ranks(size)}, so no drag is booked there" for size in sizes if size not in bands]
    return "; ".join(known + others) or "none"


def _ranks(size: int) -> str:
    return f"{size} rank{'' if size == 1 else 's'}"


def _steps_of_runs(band: Band) -> str:
    return f"{counted(band.steps, 'step')} of {counted(band.runs, 'fault-free run')}"


def _doubts(booked: Ledger) -> list[Claim]:
    share = 100 * booked.accounts["unattributed"] / booked.allocated
    if share <= UNATTRIBUTED_PERCENT_MAX:
        return []
    reason = f"wasted_gpu_hours: {share:.1f} % of the GPU time cannot be attributed to anything (1 % is allowed)"
    return [unknown(Code.LEDGER_UNATTRIBUTED, reason)]


def _unmeasurable(faults: Sequence[FaultRecord]) -> list[Claim]:
    names = ", ".join(fault.id for fault in faults)
    reason = f"wasted_gpu_hours: the slowdown by {names} {UNMEASURABLE}"
    return [unknown(Code.LEDGER_SLOWDOWN_UNKNOWN, reason)] if names else []


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _gpu_seconds(value: float) -> str:
    return f"{value:.1f} GPU-s"


SCORES = (WastedGpuHours(),)
