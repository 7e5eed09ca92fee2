"""Computes a forecast's cost in dollars, and whether spot nodes are cheaper, with or without a deadline."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.forecast.failure_rates import CauseRate
from harness.forecast.job_model import DAY_S, HOUR_S, Job, Origin
from harness.forecast.measured_inputs import Measured, cause_of
from harness.forecast.outcome import Outcome, Question, Range
from harness.forecast.simulator import Floats, Histories, simulate
from harness.forecast.spot_policies import POLICIES, Deadline, run_policy, spells
from harness.theory import closed_forms

IN_TIME = 0.95  # of the histories have to meet a deadline
POLICY_SAMPLES = 200
RECLAIMS_MAX = 1000.0  # per node-day
ON_DEMAND = "On demand"
SAMPLES = "samples of the runs"
SPOT = "Spot, each node replaced when it is reclaimed"
BOUND = POLICIES[-1]  # no policy: nobody can do better


@dataclass(frozen=True)
class Prices:
    """The prices of a node-hour in dollars. `per_s` is the number of tokens or samples (`unit`) per second that the
    whole job processes while it works."""

    on_demand: float
    spot: float | None = None
    deadline_days: float | None = None
    per_s: float | None = None
    unit: str = SAMPLES


@dataclass(frozen=True)
class Purchase:
    """The forecast cost of one way to buy the job's nodes, such as on the spot market. `in_time` is the share of the
    simulated histories that meet the deadline."""

    name: str
    dollars: Range
    days: Range
    in_time: float | None
    per_dollar: float | None
    is_bound: bool = False


@dataclass(frozen=True)
class Money:
    prices: Prices
    wasted_dollars: Range  # on demand
    dollars_of_a_gpu_hour: float
    purchases: tuple[Purchase, ...]
    breakeven_reclaims: float | None  # per node-day, up to which spot costs less; `None`: at no rate, or not asked
    settings: tuple[str, ...]  # that it rests on, beside those of the job

    @property
    def on_demand(self) -> Purchase:
        return self.purchases[0]

    @property
    def best(self) -> Purchase | None:
        fitting = [
            each for each in self.purchases if not each.is_bound and (each.in_time is None or each.in_time >= IN_TIME)
        ]
        return min(fitting, key=lambda each: each.dollars.mean, default=None)


def money_of(
    prices: Prices, question: Question, job: Job, measured: Measured, found: Outcome, histories: Histories
) -> Money:
    paid_nodes = question.paid_gpus(job) / question.gpus_per_node
    hours = histories.time[0] / HOUR_S
    bought = [_bought(ON_DEMAND, prices, job, prices.on_demand * paid_nodes * hours, histories.days[0])]
    breakeven, settings = None, tuple[str, ...]()
    if prices.spot is not None:
        on_spot = _on_spot(job, measured)
        played = simulate([on_spot], question.samples, question.seed)
        hours = played.time[0] / HOUR_S
        bought.append(_bought(SPOT, prices, job, prices.spot * paid_nodes * hours, played.days[0]))
        breakeven = breakeven_reclaims(job, prices.spot / prices.on_demand, on_spot.causes[-1].restart.mean)
        settings = ("spot_reclaims", "spot_return")
        if prices.deadline_days is not None and found.days.mean < prices.deadline_days:
            bought += _by_policies(prices, prices.deadline_days, question, job, found, paid_nodes)
            settings += ("spot_available", "spot_spell")
    per_gpu_hour = prices.on_demand / question.gpus_per_node
    wasted = found.wasted_gpu_hours
    dollars = Range(*(each * per_gpu_hour for each in (wasted.mean, wasted.low, wasted.high)))
    return Money(prices, dollars, per_gpu_hour, tuple(bought), breakeven, settings)


def _bought(name: str, prices: Prices, job: Job, dollars: Floats, days: Floats, is_bound: bool = False) -> Purchase:
    limit = prices.deadline_days
    in_time = None if limit is None else float((days <= limit).mean())
    per_dollar = None if prices.per_s is None else prices.per_s * job.work_s / float(dollars.mean())
    return Purchase(name, Range.of(dollars), Range.of(days), in_time, per_dollar, is_bound)


def _on_spot(job: Job, measured: Measured) -> Job:
    told = CauseRate(name="Spot node reclaimed", per_1000_node_days=1, node=True, faults=["preemption"])
    cause = cause_of(told, job.mean("spot_reclaims"), measured, job.settings)
    detection, restart = (
        given if (given := job.settings[part]).origin is Origin.GIVEN else getattr(cause, part)
        for part in ("detection", "restart")
    )
    cause = replace(cause, detection=detection, restart=restart, back_s=job.mean("spot_return"))
    return replace(job, causes=(*job.causes, cause)).completed()


def breakeven_reclaims(job: Job, ratio: float, restart_s: float) -> float | None:
    """Returns the rate of reclaims per node-day at which spot nodes cost as much as on-demand nodes. The job's duration
    is computed by renewal theory, without spare nodes. Returns `None` if spot nodes are not cheaper at any rate."""
    if ratio >= 1:
        return None
    usual = _time_s(job, 0, restart_s)
    low, high = 0.0, RECLAIMS_MAX
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio * _time_s(job, middle, restart_s) < usual else (low, middle)
    return low


def _time_s(job: Job, reclaims: float, restart_s: float) -> float:
    rate, more = (job.nodes * each / DAY_S for each in (job.per_node_day, reclaims))
    if not rate + more:
        return job.work_s
    stall, every, mtbf = job.mean("checkpoint_stall"), job.mean("checkpoint_every"), 1 / (rate + more)
    if stall:
        every = min(every, closed_forms.daly_interval_s(stall, mtbf))
    usual_s = job.average("detection") + job.average("restart")
    restart = (rate * usual_s + more * (restart_s + job.mean("spot_return"))) * mtbf
    return closed_forms.renewal_time_s(job.work_s, every, stall, restart, mtbf)


def _by_policies(
    prices: Prices, deadline_days: float, question: Question, job: Job, found: Outcome, nodes: float
) -> list[Purchase]:
    """Uses the forecast's mean duration on on-demand nodes as the job's hours of work."""
    assert prices.spot is not None
    changeover = (job.mean("restart") + job.mean("checkpoint_stall")) / HOUR_S
    plan = Deadline(24 * found.days.mean, 24 * deadline_days, changeover, prices.on_demand / prices.spot)
    samples, dice = min(POLICY_SAMPLES, question.samples), np.random.default_rng(question.seed)
    there = spells(plan, samples, job.mean("spot_available"), job.mean("spot_spell") / HOUR_S, dice)
    bought = []
    for name in POLICIES:
        hours = run_policy(name, plan, there)
        dollars = nodes * (prices.on_demand * hours.paid_on_demand + prices.spot * hours.paid_spot)
        told = f"Spot and on demand, {name}"
        bought.append(_bought(told, prices, job, dollars, hours.done / 24, is_bound=name == BOUND))
    return bought
