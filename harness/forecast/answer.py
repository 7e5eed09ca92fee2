"""Computes the forecast of a job (outcome, what-ifs, advice, costs and inputs), and shows the forecast as text or
JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.forecast.advice import Advice, advise
from harness.forecast.job_model import OF_CAUSES, SETTINGS, Job, Origin, Value
from harness.forecast.measured_inputs import Measured
from harness.forecast.money import SAMPLES, Money, Prices, money_of
from harness.forecast.outcome import Outcome, Question, Range, gpu_hours, outcome_of
from harness.forecast.simulator import PATIENCE, simulate
from harness.report.strict_json import strict
from harness.report.words import percent, seconds
from harness.units import counted

SCHEMA = 1
LOW_HIGH = ("low (5 %)", "high (95 %)")  # 5 % of the histories lie below the one, and 5 % above the other
NAMES_SHOWN = 3  # of causes in the row of an input


@dataclass(frozen=True)
class WhatIf:
    change: str
    outcome: Outcome
    saved_gpu_hours: Range  # history by history, on the same dice


@dataclass(frozen=True)
class Input:
    name: str
    about: str
    value: str
    origin: Origin
    source: str


@dataclass(frozen=True)
class Forecast:
    question: Question
    job: Job
    rates: tuple[str, str]  # the name of the table of failure rates, and its source
    measured: Measured
    outcome: Outcome
    what_ifs: tuple[WhatIf, ...]
    advice: Advice
    money: Money | None


def forecast(
    question: Question,
    job: Job,
    rates: tuple[str, str],
    measured: Measured,
    what_ifs: Sequence[str] = (),
    prices: Prices | None = None,
) -> Forecast:
    """Computes what a job will cost at scale. Raises `UsageError` for an invalid what-if (a changed input), for a
    what-if on spot prices, or for a job that is too large to simulate."""
    if only_spot := next((text for text in what_ifs if text.startswith("spot_")), None):
        raise UsageError(f"--what-if {only_spot[:80]}: prices are no part of it; set it with --set")
    job = job.completed()
    variants = [job, *(job.changed(text).completed() for text in what_ifs)]
    histories = simulate(variants, question.samples, question.seed)
    outcomes = [outcome_of(question, each, histories, place) for place, each in enumerate(variants)]
    hours = [gpu_hours(question, each, histories, place) for place, each in enumerate(variants)]
    changed = tuple(
        WhatIf(text, outcomes[place], Range.of(hours[0] - hours[place])) for place, text in enumerate(what_ifs, 1)
    )
    advice = advise(question, job, outcomes[0], measured.phases)
    money = money_of(prices, question, job, measured, outcomes[0], histories) if prices else None
    return Forecast(question, job, rates, measured, outcomes[0], changed, advice, money)


def sentence(found: Forecast) -> str:
    asked, out = found.question, found.outcome
    often = "without a failure" if out.between_h is None else f"with a failure every {hours_text(out.between_h)}"
    begin = f"On {counted(asked.gpus, 'GPU')}, {days_text(asked.days)} of work"
    if out.finished < 0.5:
        return f"{begin} is not done in {days_text(PATIENCE * asked.days)}, {often}."
    too_long = f"more than {days_text(PATIENCE * asked.days, unit=False)}"
    high = f"at most {days_text(out.days.high, unit=False)}" if math.isfinite(out.days.high) else too_long
    mean = days_text(out.days.mean) if math.isfinite(out.days.mean) else f"more than {days_text(out.days.low)}"
    takes = f"{mean} (in 95 % of cases {high})"
    if out.days.high < out.days.mean < math.inf:  # by a few
        takes = f"{high} in 95 % of cases, and {mean} on average, as a few wait long for nodes"
    wasted = f"{100 * out.wasted_share:.2g} % of {big(out.gpu_hours.mean)} GPU-hours are wasted"
    if found.money:
        paid = found.money.on_demand.dollars.mean
        wasted += f", {dollars(found.money.wasted_dollars.mean)} of {dollars(paid)} on demand"
    return f"{begin} takes {takes}, {often}; {wasted}.{_of_spares(found)}"


def _of_spares(found: Forecast) -> str:
    spares, out = found.job.settings["spares"], found.outcome
    if not out.accounts["spares"]:
        return ""
    share = percent(100 * out.accounts["spares"] / out.wasted_gpu_hours.mean)
    nodes = f"{counted(int(spares.mean), 'node')} on top of those at work ({spares.origin})"
    return f" Of the waste, {share} is {nodes}: they stand by, or are in repair."


def hours_text(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.2g} min"
    return f"{hours:.1f} h" if hours < 72 else days_text(hours / 24)


def days_text(days: float, unit: bool = True) -> str:
    """Formats a number of days, for example as `54.4 days` or `54 days`."""
    number = f"{days:,.0f}" if days == int(days) or days >= 100 else f"{days:.1f}" if days >= 1 else f"{days:.2g}"
    return f"{number} {'day' if days == 1 else 'days'}" if unit else number


def big(amount: float) -> str:
    """Formats a large number as a text such as `21.2 million`."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if abs(amount) >= size:
            return f"{amount / size:,.1f} {name}"
    amount = amount if abs(amount) > 1e-6 else 0.0  # the rounding error of an equal difference
    return f"{amount:,.0f}" if abs(amount) >= 10 or not amount else f"{amount:.2g}"


def dollars(amount: float) -> str:
    return f"${big(amount)}"


def inputs(found: Forecast) -> list[Input]:
    job, rows = found.job, []
    for name, part, silent in (
        ("detection", "detection", False),
        ("silent_detection", "detection", True),
        ("restart", "restart", None),
    ):
        values: dict[Value, list[str]] = {}
        for cause in job.causes:
            if silent in (None, cause.silent):
                values.setdefault(getattr(cause, part), []).append(cause.name)
        for value, causes in values.items():
            more = f" and {len(causes) - NAMES_SHOWN} more" if len(causes) > NAMES_SHOWN else ""
            which = "" if len(values) == 1 else f", of {', '.join(causes[:NAMES_SHOWN])}{more}"
            rows.append(Input(name, SETTINGS[name].about + which, _shown(name, value), value.origin, value.source))
    unused = set(OF_CAUSES)
    unused |= set() if job.losses_per_s else {"spares", "repair", "queue", "smallest", "together", "together_nodes"}
    unused |= set() if job.mean("lemons") else {"lemons", "lemon_factor", "lemons_found"}
    unused |= set() if job.mean("smallest") < 1 else {"pace"}
    spot = {name for name in SETTINGS if name.startswith("spot_")}
    unused |= spot.difference(found.money.settings if found.money else ())
    for name, value in job.settings.items():
        if name not in unused:
            rows.append(Input(name, SETTINGS[name].about, _shown(name, value), value.origin, value.source))
    return rows


def _shown(name: str, value: Value) -> str:
    mean = value.mean
    if not math.isfinite(mean):
        return "never"
    return seconds(mean) if SETTINGS[name].is_time else f"{mean:,.4g}"


def assumptions(found: Forecast) -> list[str]:
    measured, asked = found.measured, found.question
    if measured.recoveries:
        mean = sum(each.detection_s + each.restart_s for each in measured.recoveries) / len(measured.recoveries)
        many = counted(len(measured.recoveries), "recovery", "recoveries")
        where = ", ".join(sorted(measured.places)) or "a job of unknown size"
        took = f"in {seconds(mean)} (mean of {many})"
        told = [f"{counted(asked.gpus, 'GPU')} are taken to recover as fast as {where} did: {took}."]
    elif measured.runs:
        told = ["The runs recovered from nothing, so no recovery was measured."]
    else:
        told = ["Nothing was measured: name runs, so that the forecast is of your stack and not of an average one."]
    told.append(
        f"Failures are those of the table {found.rates[0]}: {found.rates[1]}. They come {found.job.gaps.words}."
    )
    if measured.recoveries:
        told.append("Waiting for a node is not taken from runs, where the scenario says how long it lasts.")
    if measured.stalls:
        told.append("A checkpoint is taken to stop training for as long as in the runs, whose model may be smaller.")
    if len(measured.commits) > 1:
        told.append(f"The runs are of {len(measured.commits)} commits: not all of them measured the same stack.")
    if any(cause.counted for cause in found.job.causes):
        told.append("The interval holds how well the counts of that table are known, not how far your nodes differ.")
    if found.money and found.money.prices.per_s and found.money.prices.unit == SAMPLES:
        told.append("Each GPU is taken to train on as many samples a second as those of the runs.")
    told += [] if found.job.mean("lemons") else ["No node fails more often than others."]
    told.append(
        "A checkpoint counts once training goes on, and is always found whole. Nodes that stand by or wait do not fail."
    )
    return told


def to_json(found: Forecast) -> dict[str, Any]:
    """Returns the forecast as JSON values for programs. Infinite values become `null`."""
    job, advice = found.job, found.advice
    best = {"best_interval": advice.best_interval, "best_spares": advice.best_spares}
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "answer": sentence(found),
        "question": found.question,
        "outcome": found.outcome,
        "advice": msgspec.to_builtins(advice) | best,
        "what_if": found.what_ifs,
        "money": found.money,
        "failure_rates": {
            "table": found.rates[0],
            "source": found.rates[1],
            "gaps": job.gaps.words,
            "per_1000_node_days": {cause.name: 1000 * cause.per_node_day for cause in job.causes},
        },
        "inputs": inputs(found),
        "measured": {"runs": found.measured.runs, "recoveries": len(found.measured.recoveries)},
        "assumptions": assumptions(found),
    }
    plain: dict[str, Any] = strict(msgspec.to_builtins(values))
    return plain
