"""Wasted GPU-hours: the exact ledger of all allocated GPU time, and the part of the waste that faults caused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.judge.bounds import WASTED_BY_FAULTS, WasteBounds
from harness.judge.facts import ledger
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.ledger import Ledger
from harness.judge.facts.usual import UNMEASURABLE, Band
from harness.judge.score import Expectation, S, Score, ScoreResult, at_most
from harness.judge.verdict import Code, Figure, Ground, Kind, unknown
from harness.theory import closed_forms
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Timeline
from harness.units import counted

UNATTRIBUTED_PERCENT_MAX = 1.0


class WastedGpuHours(Score):
    name = "wasted_gpu_hours"
    order = 20

    def score(self, evidence: Analysis, bounds: WasteBounds | None) -> ScoreResult:
        run, booked = evidence.run, evidence.ledger
        values = _values(run, booked) | {"baseline": _baseline(run, evidence.usual.bands)}
        values["closed_forms"] = ledger.forecast(run, booked)
        if bounds is None:
            return ScoreResult(values)
        if not booked.allocated:
            none = unknown(Code.LEDGER_NO_GPU, "wasted_gpu_hours: no allocated GPU is in the log")
            return ScoreResult(values, reasons=[none])
        lacking = _unmeasured(evidence)
        summary = "" if lacking else f"{_percent(values['percent_by_faults'])} of GPU time wasted by faults"
        bounded = (bounds.max_percent_by_faults, bounds.max_gpu_seconds_by_faults) != (None, None)
        not_judged = [(WASTED_BY_FAULTS, lacking)] if lacking and not bounded else []
        share = 100 * booked.accounts["unattributed"] / booked.allocated
        text = f"wasted_gpu_hours: {share:.1f} % of the GPU time cannot be attributed to anything (1 % is allowed)"
        reasons = [unknown(Code.LEDGER_UNATTRIBUTED, text)] if share > UNATTRIBUTED_PERCENT_MAX else []
        return ScoreResult(values, _lines(evidence, values, bounds, lacking), reasons, summary, not_judged)


def _lines(evidence: Analysis, values: dict[str, Any], bounds: WasteBounds, lacking: str) -> list[Expectation]:
    # Each window may begin by one host's clock and end by another's, on every GPU.
    margin_s = 2 * evidence.run.uncertainty_ns * len(evidence.windows) * evidence.run.largest_world / S
    margin_percent = 100 * margin_s * S / evidence.ledger.allocated
    slowed = tuple(Ground(Kind.DURATION, of=each) for each in evidence.degraded)  # faults may not have caused it
    table: Sequence[tuple[str, str, Callable[[Any], str], float, str, tuple[Ground, ...]]] = (
        ("max_percent", "percent", _percent, margin_percent, "%", ()),
        ("max_percent_by_faults", "percent_by_faults", _percent, margin_percent, "%", slowed),
        ("max_gpu_seconds", "gpu_seconds_wasted", _gpu_seconds, margin_s, "GPU-s", ()),
        ("max_gpu_seconds_by_faults", "gpu_seconds_wasted_by_faults", _gpu_seconds, margin_s, "GPU-s", slowed),
    )
    found = list[Expectation]()
    for name, key, show, margin, unit, grounds in table:
        if (bound := getattr(bounds, name)) is not None:
            figure = Ground(Kind.DURATION, of=Figure(values[key], margin), bound=bound)
            rests_on = (figure, *grounds)
            # What faults caused is more, where they did what nobody can measure: it may be too much, never enough.
            least = bool(lacking) and name.endswith("by_faults") and values[key] <= bound
            observed, why = (None, lacking) if least else (values[key], "")
            found.append(at_most(f"wasted_gpu_hours.{name}", observed, bound, show, why, unit, rests_on))
    return found


def _unmeasured(evidence: Analysis) -> str:
    """Why it is not known what faults cost, or an empty text."""
    run = evidence.run
    if not run.reached_step:
        return "no step was completed"
    if run.plan.get("faults") and first_strike(run.faults) == NEVER:
        return "no fault struck"
    names = ", ".join(fault.id for fault in evidence.slowed.unmeasurable)
    return f"the slowdown by {names} {UNMEASURABLE}" if names else ""


def _values(run: Timeline, booked: Ledger) -> dict[str, Any]:
    def percent(amount: int) -> float:
        return 100 * amount / booked.allocated if booked.allocated else 0.0

    # Effective training time ratio: productive GPU time over what the planned GPUs could have given in this time.
    begin = min((slot.allocated for slot in run.slots), default=run.end)
    possible = (run.planned_size.world_size or 0) * (run.end - begin)  # 0: the plan is lost, or no GPU was allocated
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
        "ettr": booked.accounts["productive"] / possible if possible else None,
        "badput": {name: amount / S for name, amount in closed_forms.badput(booked.accounts).items()},
    }
    price = (run.plan.get("scenario") or {}).get("price_per_gpu_hour")
    if price is not None:
        values["dollars_wasted"] = float(price) * values["gpu_hours_wasted"]
        values["dollars_wasted_by_faults"] = float(price) * values["gpu_hours_wasted_by_faults"]
    return values


def _baseline(run: Timeline, bands: Mapping[int, Band]) -> str:
    """From what the baseline band of straggler drag was taken, world size by world size."""
    known, others = [], []
    for size in sorted({epoch.size for epoch in run.epochs}):
        band, ranks = bands.get(size), f"{size} rank{'' if size == 1 else 's'}"
        if band:
            known.append(f"{counted(band.steps, 'step')} of {counted(band.runs, 'fault-free run')} at {ranks}")
        else:
            others.append(f"none at {ranks}, so only a standstill over a fault is booked there")
    return "; ".join(known + others) or "none"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _gpu_seconds(value: float) -> str:
    return f"{value:.1f} GPU-s"


SCORES = (WastedGpuHours(),)
