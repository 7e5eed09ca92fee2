"""Computes the figures of a run for which scenarios set no bounds, and joins them with the judge's figures."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.evidence import reported
from harness.evidence.ledger import Ledger
from harness.evidence.usual import Band, Degraded, Times, standstill_ns
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Scorecard
from harness.node.emitter import TELLS
from harness.report import usage
from harness.report.hangs import hangs
from harness.theory import closed_forms
from harness.timeline.lookups import grouped
from harness.timeline.timeline import Episode, Timeline
from harness.units import counted

S = 1_000_000_000
_NAMES = ("failures", "mean_time_to_failure_s", "restart_s", "lost_s", "interval_s", "checkpoint_s", "ettr")
_FORMS = ("lost_s_expected", "ettr_expected", "interval_s_young", "interval_s_daly")
_LOST = ("interrupted_step", "recompute")


def scores(card: Scorecard) -> dict[str, dict[str, Any]]:
    """Returns all figures of a run by criterion, such as `recovery_time`, from the judge and from this module."""
    table = {
        "recovery_time": _recoveries,
        "wasted_gpu_hours": _waste,
        "pace": _pace,
        "collectives": lambda evidence: {"hangs": hangs(evidence.run)},
    }
    found = {name: _worked_out(figures, card.evidence) for name, figures in table.items()}
    names = dict.fromkeys([*card.scores, *found])
    return {name: {**found.get(name, {}), **card.scores.get(name, {})} for name in names}


def metrics(card: Scorecard) -> dict[str, Any]:
    return {**_worked_out(_of_the_job, card.evidence), **card.metrics}


def _worked_out(figures: Callable[[Analysis], dict[str, Any]], evidence: Analysis) -> dict[str, Any]:
    """Calls the function `figures`. An exception in `figures` becomes the text `error`, so that a bug in one figure
    does not prevent the report."""
    try:
        return figures(evidence)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


# Recoveries


def _recoveries(evidence: Analysis) -> dict[str, Any]:
    run = evidence.run
    above: dict[str, Any] = {"first_step_seconds": None, "phases": {}}
    if episode := longest(run):
        above = {name: _episode(run, episode)[name] for name in above}
    return above | {
        "episodes": [_episode(run, each) for each in run.episodes],
        "degraded": [_slowdown(run, interval) for interval in evidence.slowed.measured],
    }


def longest(run: Timeline) -> Episode | None:
    return max(run.episodes, key=lambda each: (each.t_regained is None, each.end - each.t_stop), default=None)


def _episode(run: Timeline, episode: Episode) -> dict[str, Any]:
    regained, first = episode.t_regained, episode.t_first
    return {
        "t_stop": (episode.t_stop - run.begin) / S,
        "seconds": None if regained is None else (regained - episode.t_stop) / S,
        "first_step_seconds": None if first is None else (first - episode.t_stop) / S,
        "furthest_step": episode.furthest_step,
        "faults": list(episode.faults),
        "phases": {phase: amount / S for phase, amount in episode.phases_ns.items()},
    }


def _slowdown(run: Timeline, interval: Degraded) -> dict[str, Any]:
    return {
        "fault": interval.fault,
        "t_begin": (interval.begin - run.begin) / S,
        "seconds": (interval.end - interval.begin) / S,
        "recovered": interval.recovered,
        "slowdown": interval.factor,
        "slowdown_before": interval.before,
        "standstill_seconds": standstill_ns(run, interval) / S,
    }


def _pace(evidence: Analysis) -> dict[str, Any]:
    if isinstance(evidence.pace, str):
        return {"slowdown": None, "steps": 0}
    names = ("slowdown", "median", "at_least", "steps", "before", "best", "slowest", "worst")
    return {name: getattr(evidence.pace, name) for name in names}


# GPU time


def _waste(evidence: Analysis) -> dict[str, Any]:
    run, booked = evidence.run, evidence.ledger
    begin = min((slot.allocated for slot in run.slots), default=run.end)
    possible = (run.planned_size.world_size or 0) * (run.end - begin)  # 0: the plan is lost, or no GPU was allocated
    productive = booked.accounts["productive"]
    values: dict[str, Any] = {
        "gpu_seconds_allocated": booked.allocated / S,
        "gpu_hours_wasted": booked.wasted / S / 3600,
        "gpu_hours_wasted_by_faults": booked.wasted_by_faults / S / 3600,
        "accounts": {name: amount / S for name, amount in booked.accounts.items()},
        "accounts_by_faults": {name: amount / S for name, amount in booked.by_faults.items() if amount},
        "accounts_ns": dict(booked.accounts),
        "goodput_percent": 100 * productive / booked.allocated if booked.allocated else 0.0,
        "ettr": productive / possible if possible else None,
        "baseline": _baseline(run, evidence.usual.bands),
        "closed_forms": _closed_forms(run, booked),
        "badput": {name: amount / S for name, amount in closed_forms.badput(booked.accounts).items()},
    }
    if (price := price_per_gpu_hour(run)) is not None:
        values["dollars_wasted"] = price * values["gpu_hours_wasted"]
        values["dollars_wasted_by_faults"] = price * values["gpu_hours_wasted_by_faults"]
    return values


def price_per_gpu_hour(run: Timeline) -> float | None:
    price = (run.plan.get("scenario") or {}).get("price_per_gpu_hour")
    return None if price is None else float(price)


def _baseline(run: Timeline, bands: Mapping[int, Band]) -> str:
    known, others = [], []
    for size in sorted({epoch.size for epoch in run.epochs}):
        band, ranks = bands.get(size), f"{size} rank{'' if size == 1 else 's'}"
        if band:
            known.append(f"{counted(band.steps, 'step')} of {counted(band.runs, 'fault-free run')} at {ranks}")
        else:
            others.append(f"none at {ranks}, so only a standstill over a fault is booked there")
    return "; ".join(known + others) or "none"


def _closed_forms(run: Timeline, booked: Ledger) -> dict[str, Any]:
    """Returns measured figures, and the ones that formulas (Young, Daly) predict. All figures are `None` without a
    failure. Measured and predicted figures may differ, because the formulas assume many failures at random times.
    `restart_s` and `lost_s` are the mean seconds per failure of restarting and of repeating lost work. `interval_s` is
    the work between two checkpoints, and `checkpoint_s` the time for which a checkpoint stops the training. `ettr`
    covers the time from the first step to the last."""
    values: dict[str, Any] = dict.fromkeys((*_NAMES, *_FORMS))
    over = [episode for episode in run.episodes if episode.t_regained is not None and episode.furthest_step > 0]
    values["failures"] = len(over)
    span = float(run.progress.end[-1] - run.progress.begin.min()) / S if len(run.progress) else 0.0
    interval, checkpoint = _interval_s(run), _checkpoint_s(run)
    planned = run.planned_size.world_size
    if not over or not span or not planned or not interval:
        return values
    segments = [segment for episode in over for segment in episode.segments]
    lost = sum(each.end - each.begin for each in segments if each.phase in _LOST) / S / len(over)
    restart = sum(each.end - each.begin for each in segments if each.phase not in _LOST) / S / len(over)
    mean = span / len(over)
    return values | {
        "mean_time_to_failure_s": mean,
        "restart_s": restart,
        "lost_s": lost,
        "interval_s": interval,
        "checkpoint_s": checkpoint,
        "ettr": booked.accounts["productive"] / S / (planned * span),
        "lost_s_expected": interval / 2,
        "ettr_expected": closed_forms.expected_ettr(1 / mean, restart, interval, checkpoint or 0.0),
        "interval_s_young": checkpoint and closed_forms.young_interval_s(checkpoint, mean),
        "interval_s_daly": checkpoint and closed_forms.daly_interval_s(checkpoint, mean),
    }


def _interval_s(run: Timeline) -> float | None:
    if run.saves_every_s is not None:
        return run.saves_every_s
    every, taken = run.saves_every, Times.of(run).taken
    return every * float(np.median(taken)) / S if every is not None and len(taken) else None


def _checkpoint_s(run: Timeline) -> float | None:
    saved = {event.get("step") for event in run.checkpoints if event["event"] == "checkpoint.committed"}
    stalls = float(run.steps.checkpoint_ns[run.steps.survives].sum()) / max(1, run.largest_world) / S
    return stalls / len(saved) if saved and stalls else None


# The job


def _of_the_job(evidence: Analysis) -> dict[str, Any]:
    """Returns the figures of the job as a whole. Samples per second exclude rolled-back steps, and cover the time from
    the first step to the last. The price of a million samples, and that of an epoch, include all allocated GPU time."""
    run, here = evidence.run, reported.told(evidence.run)
    sync = run.steps.sync_ns[run.steps.sync_ns > 0]
    took = grouped((save.kind, save.duration_ns) for save in evidence.saves.whole)
    durations = [save.duration_ns for save in evidence.saves.whole]
    samples, span = _samples(run), int(run.progress.end[-1] - run.progress.begin[0]) if len(run.progress) else 0
    price, lasted = price_per_gpu_hour(run), run.end - run.begin
    million: float | None = None
    # Nodes that came for others. Those that came before a window are in it from its begin.
    came = len({(s.node, s.incarnation) for s in run.slots if s.incarnation > 1 and s.allocated > run.begin})
    if price is not None and samples:
        gpu_ns = sum(slot.released - slot.allocated for slot in run.slots)
        million = price * gpu_ns / (3600 * S) / samples * 1e6
    return {
        "tells": [kind for kind in TELLS if kind in here],
        "anomalies": len(run.anomalies),
        **usage.figures(run),
        "sync_seconds_p50": float(np.median(sync)) / S if len(sync) else None,
        "samples_per_second": samples * S / span if samples is not None and span else None,
        "steps_executed": len(run.progress),
        "checkpoint_seconds_p50": float(np.median(durations)) / S if durations else None,
        "checkpoint_seconds_max": max(durations) / S if durations else None,
        "checkpoint_seconds_max_by_kind": {kind: max(each) / S for kind, each in sorted(took.items())} or None,
        "resumes": len(run.episodes),
        "fallbacks": sum(len(process.fallback) for process in run.processes if process.restored_step),
        "fell_back": _fell_back(run) or None,
        "preemptions": sum(fault.preempts and fault.injected is not None for fault in run.faults),
        "replacements": came,
        "worker_starts": len(run.processes),
        "time_to_complete_seconds": lasted / S if run.finished and run.outcome == "completed" else None,
        "requeues_per_hour": came * 3600 * S / lasted if lasted > 0 and run.slots else None,
        "dollars_per_million_samples": million,
        "dollars_per_epoch": None if million is None or run.data_samples is None else million * run.data_samples / 1e6,
    }


def _samples(run: Timeline) -> float | None:
    steps = run.steps
    rows = np.flatnonzero(steps.survives & steps.complete)
    if not len(rows) or (steps.count[rows] < 0).any():
        return None
    chosen = rows[np.unique(steps.step[rows], return_index=True)[1]]
    return float(steps.count[chosen].sum(dtype=np.float64))


def _fell_back(run: Timeline) -> str:
    """Describes each restore that skipped checkpoints, as `to step 80, past checkpoints/save_000100.pth`."""
    restored = ((each.restored_step, save.get("source")) for each in run.processes for save in each.fallback)
    told = ((step, pathlib.PurePath(source).parts[-2:]) for step, source in restored if step and source)
    past = grouped((step, "/".join(parts)) for step, parts in told)
    return "; ".join(f"to step {step}, past {', '.join(dict.fromkeys(names))}" for step, names in past.items())
