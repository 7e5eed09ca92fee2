"""Summarizes simulations of a job: its days, GPU-hours and failures, each with mean, 5 % quantile and 95 % quantile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.forecast.job_model import HOUR_S, Job
from harness.forecast.simulator import ACCOUNTS, Floats, Histories

PLANNED = "Planned restart, a node is back"


@dataclass(frozen=True)
class Question:
    gpus: int
    days: float
    gpus_per_node: int = 8
    samples: int = 1000
    seed: int = 1

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def paid_gpus(self, job: Job) -> float:
        return self.gpus + job.mean("spares") * self.gpus_per_node


@dataclass(frozen=True)
class Range:
    """The mean of a figure over simulations of a job, and its 5 % and 95 % quantiles."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Range:
        low, high = np.quantile(values, [0.05, 0.95], method="inverted_cdf")
        return cls(float(values.mean()), float(low), float(high))


@dataclass(frozen=True)
class CauseCost:
    name: str
    failures: float
    gpu_hours: float  # of the job's GPUs, its spares not counted


@dataclass(frozen=True)
class Outcome:
    """The forecast of one variant of the job: its days, GPU-hours and failures. `ettr` is the effective training time
    ratio: the time of useful work divided by the whole time. `goodput` is the GPU-hours of useful work divided by all
    paid GPU-hours."""

    finished: float  # share of the histories
    days: Range
    ettr: Range
    goodput: Range
    failures: Range
    between_h: float | None  # hours from one failure to the next, on average
    first_h: Range  # hours to the first failure; its median in place of a mean
    gpu_hours: Range
    wasted_gpu_hours: Range
    accounts: dict[str, float]  # GPU-hours; with those of `spares` they add up to all
    causes: tuple[CauseCost, ...]  # the most costly first
    waits: float  # outages in which nodes were missing
    saves: float

    @property
    def wasted_share(self) -> float:
        return self.wasted_gpu_hours.mean / self.gpu_hours.mean


def outcome_of(question: Question, job: Job, histories: Histories, place: int) -> Outcome:
    hours = gpu_hours(question, job, histories, place)
    work = question.gpus * histories.accounts["work"][place] / HOUR_S
    accounts = {name: question.gpus * float(histories.accounts[name][place].mean()) / HOUR_S for name in ACCOUNTS}
    names = [*(cause.name for cause in job.causes), PLANNED]
    met = histories.failures[place].mean(axis=0)
    outages = question.gpus * histories.outages[place].mean(axis=0) / HOUR_S
    costs = [CauseCost(*each) for each in zip(names, met.tolist(), outages.tolist(), strict=True)]
    first = np.quantile(histories.first[place] / HOUR_S, [0.5, 0.05, 0.95], method="inverted_cdf")
    return Outcome(
        finished=float(histories.done[place].mean()),
        days=Range.of(histories.days[place]),
        ettr=Range.of(histories.ettr[place]),
        # The mean is of added hours: with the wasted share it adds up to one.
        goodput=replace(Range.of(work / hours), mean=float(work.mean() / hours.mean())),
        failures=Range.of(histories.failures[place][:, :-1].sum(axis=1).astype(float)),
        between_h=float(histories.time[place].mean() / HOUR_S / met[:-1].sum()) if met[:-1].any() else None,
        first_h=Range(*map(float, first)),
        gpu_hours=Range.of(hours),
        wasted_gpu_hours=Range.of(hours - work),
        accounts=accounts | {"spares": float(hours.mean()) - sum(accounts.values())},
        causes=tuple(sorted((each for each in costs if each.failures), key=lambda each: -each.gpu_hours)),
        waits=float(histories.waits[place].mean()),
        saves=float(histories.saves[place].mean()),
    )


def gpu_hours(question: Question, job: Job, histories: Histories, place: int) -> Floats:
    hours: Floats = question.paid_gpus(job) * histories.time[place] / HOUR_S
    return hours
