"""Computes a forecast's advice: the best checkpoint interval, the best number of spare nodes, and the GPU-hours that
faster recovery would save."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.forecast.job_model import HOUR_S, Job
from harness.forecast.outcome import Outcome, Question, outcome_of
from harness.forecast.simulator import simulate
from harness.report.words import words
from harness.theory import closed_forms

SAMPLES = 50  # of each interval and of each number of spares that is tried


@dataclass(frozen=True)
class Tried:
    value: float
    days: float
    gpu_hours: float


@dataclass(frozen=True)
class Worth:
    """The cost of a repeated event, such as a restart, which occurs `times` times and takes `seconds` each time.
    `of_all` is the number of GPU-hours that all events of this kind cost together. `of_a_second` is the number of
    GPU-hours that would be saved if each event took a second less."""

    what: str
    times: float
    seconds: float
    of_a_second: float
    of_all: float


@dataclass(frozen=True)
class Advice:
    """A forecast's advice on the checkpoint interval and on spare nodes. `young_s` and `daly_s` are the best checkpoint
    intervals in seconds by Young's and Daly's formulas. `young_s` and `daly_s` are 0 if checkpoints cost nothing or
    nothing fails. The best checkpoint interval gives the shortest run, and the best number of spare nodes costs the
    fewest GPU-hours."""

    young_s: float
    daly_s: float
    intervals: tuple[Tried, ...]
    spares: tuple[Tried, ...]
    worth: tuple[Worth, ...]  # the most costly first

    @property
    def best_interval(self) -> Tried | None:
        return min(self.intervals, key=lambda each: each.days, default=None) if self.daly_s else None

    @property
    def best_spares(self) -> Tried | None:
        return min(self.spares, key=lambda each: each.gpu_hours, default=None)


def advise(question: Question, job: Job, found: Outcome, phases: Mapping[str, float]) -> Advice:
    """Tries checkpoint intervals and numbers of spare nodes. All tried values use the same random numbers, and fewer
    simulations than the forecast itself. `phases` holds the mean seconds of each measured phase of a restart."""
    stall, away = job.mean("checkpoint_stall"), job.losses_per_s * min(job.mean("repair"), job.mean("queue"))
    young = daly = 0.0
    if stall and job.per_node_day:
        young = closed_forms.young_interval_s(stall, job.mtbf_s)
        daly = closed_forms.daly_interval_s(stall, job.mtbf_s)
    intervals = {job.mean("checkpoint_every"), *(daly * 2 ** (power / 2) for power in range(-4, 5))} - {0.0}
    spares = {job.mean("spares"), *(_around(away, deviations) for deviations in range(-1, 5))} if away else set()
    tries = [("checkpoint_every", each) for each in sorted(intervals)] + [("spares", each) for each in sorted(spares)]
    variants = [job.with_setting(*each) for each in tries]
    histories = simulate(variants, min(SAMPLES, question.samples), question.seed)
    came = [outcome_of(question, variant, histories, place) for place, variant in enumerate(variants)]
    now = came[tries.index(("checkpoint_every", job.mean("checkpoint_every")))]
    tried = [
        Tried(value, *(_moved(*each) for each in zip(_figures(found), _figures(now), _figures(one), strict=True)))
        for (_, value), one in zip(tries, came, strict=True)
    ]
    count = len(intervals)
    return Advice(young, daly, tuple(tried[:count]), tuple(tried[count:]), tuple(_worth(question, job, found, phases)))


def _figures(outcome: Outcome) -> tuple[float, float]:
    return outcome.days.mean, outcome.gpu_hours.mean


def _moved(told: float, now: float, tried: float) -> float:
    """Adds the difference between two settings (`tried` minus `now`) to the full forecast's figure `told`."""
    return told + tried - now if math.isfinite(told + tried - now) else tried


def _around(mean: float, deviations: int) -> float:
    return float(max(0, math.ceil(mean + deviations * math.sqrt(mean))))


def _worth(question: Question, job: Job, found: Outcome, phases: Mapping[str, float]) -> list[Worth]:
    met = {each.name: each.failures for each in found.causes}
    failures = found.failures.mean
    rows: list[tuple[str, float, float]] = []  # what, times, GPU-hours of all
    for silent, name in ((False, "Detection"), (True, "Detection of what is silent")):
        causes = [cause for cause in job.causes if cause.silent is silent]
        times = sum(met.get(cause.name, 0.0) for cause in causes)
        spent = sum(met.get(cause.name, 0.0) * cause.detection.mean for cause in causes)
        rows.append((name, times, spent * question.gpus / HOUR_S))
    parts = {f"Restart: {words(name).lower()}": amount for name, amount in phases.items()} or {"Restart": 1.0}
    whole = math.fsum(parts.values()) or 1.0
    rows += [(name, failures, found.accounts["restart"] * amount / whole) for name, amount in parts.items()]
    rows.append(("Waiting for nodes", found.waits, found.accounts["wait"]))
    rows.append(("Work since the last checkpoint", failures, found.accounts["lost"]))
    rows.append(("Checkpoint stall", found.saves, found.accounts["stall"]))
    told = [
        Worth(what, times, hours * HOUR_S / question.gpus / times, min(hours, times * question.gpus / HOUR_S), hours)
        for what, times, hours in rows
        if times and hours
    ]
    return sorted(told, key=lambda each: -each.of_all)
