"""A forecast as one page: the same sections on a terminal and in HTML."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from harness.forecast.answer import Forecast, assumptions, big, days_text, hours_text, inputs, sentence
from harness.forecast.job_model import Origin
from harness.forecast.money import IN_TIME, Money
from harness.forecast.outcome import Range
from harness.forecast.simulator import PATIENCE
from harness.report import html_page
from harness.report.charts import svg
from harness.report.section import Section
from harness.report.words import DASH, percent, seconds
from harness.units import counted

CARDS = 4  # rows of the answer that the page shows large
ACCOUNTS = {  # of GPU-hours → in words, and the colour of what is like it in the report of a run
    "work": ("Work that counts", "productive"),
    "detect": ("Detection", "detect"),
    "wait": ("Waiting for nodes", "reschedule"),
    "restart": ("Restart", "startup"),
    "lost": ("Work since the last checkpoint, lost", "recompute"),
    "stall": ("Checkpoint stall", "checkpoint_stall"),
    "slower": ("Slower with fewer nodes", "straggler_drag"),
    "spares": ("Spares", "idle"),
}
SET = "Each is set with --set NAME=VALUE and varied with --what-if NAME=0.5x; so are failure_rate and recovery."


def sections(found: Forecast) -> list[Section]:
    known = sorted(inputs(found), key=lambda each: list(Origin).index(each.origin))
    rows = [(each.name, each.value, str(each.origin), each.source, each.about) for each in known]
    head = ("input", "value", "origin", "source", "meaning")
    told = [_outcome(found), _accounts(found), _causes(found), _worth(found), _interval(found), _spares(found)]
    told += [_what_ifs(found)] if found.what_ifs else []
    told += [_money(found.money)] if found.money else []
    told.append(Section("What it rests on", [SET], head, rows, all_text=True))
    return [*told, Section("Beyond these inputs it is assumed", assumptions(found))]


def render(found: Forecast) -> str:
    total, at, bars = found.outcome.gpu_hours.mean, 0.0, list[Markup]()
    for name, amount in found.outcome.accounts.items():
        label, colour = ACCOUNTS[name]
        title = f"{label}: {big(amount)} GPU-h, {percent(100 * amount / total)}"
        bars.append(svg.rect(at, 0, 1000 * amount / total, 34, f"p-{colour}", title))
        at += 1000 * amount / total
    crumbs = [
        counted(found.question.samples, "simulated history", "simulated histories"),
        f"seed {found.question.seed}",
        f"failure rates {found.rates[0]}",
        counted(len(found.measured.runs), "run") + " measured",
    ]
    shown = sections(found)
    values: dict[str, Any] = {
        "sentence": sentence(found),
        "crumbs": crumbs,
        "cards": shown[0].rows[:CARDS],
        "bars": bars,
    }
    return html_page.fill(f"{__package__}/forecast.jinja", title="Forecast", sections=shown, **values)


def _days(days: float) -> str:
    return days_text(days) if math.isfinite(days) else "not done"


def _share(value: float) -> str:
    return percent(100 * value)


def _dollars(amount: float) -> str:
    return f"${big(amount)}"


def _priced(found: Forecast, gpu_hours: float) -> list[str]:
    """A cell with the price of so many GPU-hours, where there is one."""
    return [_dollars(gpu_hours * found.money.dollars_of_a_gpu_hour)] if found.money else []


def _outcome(found: Forecast) -> Section:
    out = found.outcome

    def row(name: str, values: Range, show: Callable[[float], str]) -> tuple[str, ...]:
        return name, show(values.mean), show(values.low), show(values.high)

    rows = [
        row("Time to complete", out.days, _days),
        row("Effective training time ratio", out.ettr, _share),
        row("Failures", out.failures, lambda value: f"{value:,.0f}"),
        row("GPU-hours wasted", out.wasted_gpu_hours, big),
        row("GPU-hours", out.gpu_hours, big),
        row("Goodput, with spares", out.goodput, _share),
        row("First failure, median", out.first_h, lambda hours: hours_text(hours) if math.isfinite(hours) else "none"),
    ]
    rows += [row("Dollars wasted", found.money.wasted_dollars, _dollars)] if found.money else []
    late = f"{_share(1 - out.finished)} of the histories are given up, not done after {PATIENCE:g} times the work."
    return Section("The answer", [late] if out.finished < 1 else (), ("", "mean", "5 %", "95 %"), rows)


def _accounts(found: Forecast) -> Section:
    total = found.outcome.gpu_hours.mean
    rows = [
        (ACCOUNTS[name][0], big(amount), percent(100 * amount / total), *_priced(found, amount))
        for name, amount in found.outcome.accounts.items()
    ]
    return Section("Where the GPU-hours go", (), ("", "GPU-hours", "share", *["dollars"] * bool(found.money)), rows)


def _causes(found: Forecast) -> Section:
    rows = [
        (each.name, f"{each.failures:,.1f}", big(each.gpu_hours), *_priced(found, each.gpu_hours))
        for each in found.outcome.causes
    ]
    words = "Outages and lost work, by what caused them." if rows else "Nothing fails."
    return Section("Wasted by cause", [words], ("", "failures", "GPU-hours", *["dollars"] * bool(found.money)), rows)


def _worth(found: Forecast) -> Section:
    worth = found.advice.worth
    words = "Nothing is lost."
    if worth:
        most = max(worth, key=lambda each: each.of_a_second)
        words = f"The most is lost by this: {worth[0].what}. A second less each time is worth the most of this: "
        words += f"{most.what}; {big(most.of_a_second)} GPU-hours."
    rows = [
        (each.what, f"{each.times:,.0f}", seconds(each.seconds), big(each.of_a_second), big(each.of_all))
        for each in worth
    ]
    head = ("", "times", "each takes", "GPU-h of a second less", "GPU-h of all")
    return Section("Where the next second is worth most", [words], head, rows)


def _interval(found: Forecast) -> Section:
    advice, now = found.advice, seconds(found.job.mean("checkpoint_every"))
    if (best := advice.best_interval) is None:
        return Section("Checkpoint interval", [f"It is {now}. Without a stall or a failure, no interval is the best."])
    words = f"It is {now}. The best of those tried is {seconds(best.value)}; Young's formula says "
    words += f"{seconds(advice.young_s)}, Daly's {seconds(advice.daly_s)}."
    rows = [(seconds(each.value), _days(each.days), f"{each.gpu_hours:,.0f}") for each in advice.intervals]
    return Section("Checkpoint interval", [words], ("after", "time", "GPU-hours"), rows)


def _spares(found: Forecast) -> Section:
    if (best := found.advice.best_spares) is None:
        return Section("Spares", ["No failure takes a node for longer, so no spare is needed."])
    words = f"There are {found.job.mean('spares'):,.0f}. With {best.value:,.0f}, the fewest GPU-hours are paid."
    rows = [(f"{each.value:,.0f}", _days(each.days), f"{each.gpu_hours:,.0f}") for each in found.advice.spares]
    return Section("Spares", [words], ("nodes", "time", "GPU-hours"), rows)


def _what_ifs(found: Forecast) -> Section:
    rows = [
        (
            each.change,
            _days(each.outcome.days.mean),
            _share(each.outcome.ettr.mean),
            *map(big, (each.saved_gpu_hours.mean, each.saved_gpu_hours.low, each.saved_gpu_hours.high)),
        )
        for each in found.what_ifs
    ]
    words = (
        "The same histories with one thing changed in each; an interval and spares that nobody gave are fitted to it."
    )
    return Section("What if", [words], ("", "time", "ETTR", "GPU-hours saved", "5 %", "95 %"), rows)


def _money(money: Money) -> Section:
    prices = money.prices
    told = [_best(money)]
    if prices.spot is not None and money.breakeven_reclaims is None:
        told.append("Spot costs as much as on demand, or more: it never pays.")
    elif prices.spot is not None:
        rate = f"{money.breakeven_reclaims:.2g} reclaims per node-day"
        told.append(f"Where each node is replaced when it is reclaimed, spot costs less up to {rate}.")
    rows = [
        (
            each.name + (" (nobody can do better)" if each.is_bound else ""),
            *map(_dollars, (each.dollars.mean, each.dollars.low, each.dollars.high)),
            *map(_days, (each.days.mean, each.days.high)),
            DASH if each.in_time is None else _share(each.in_time),
            DASH if each.per_dollar is None else big(each.per_dollar),
        )
        for each in money.purchases
    ]
    head = ("", "dollars", "5 %", "95 %", "time", "95 %", "by the deadline", f"{prices.unit} a dollar")
    return Section("Money", told, head, rows)


def _best(money: Money) -> str:
    best, limit = money.best, money.prices.deadline_days
    if best is None:
        return f"Nothing is done by the deadline of {days_text(limit or 0)} in {100 * IN_TIME:g} % of the histories."
    words = f"The cheapest is: {best.name}; {_dollars(best.dollars.mean)}"
    if best is not money.purchases[0]:
        words += f", {percent(100 * (1 - best.dollars.mean / money.purchases[0].dollars.mean))} less than on demand"
    if limit is not None:
        words += f". It is done by the deadline of {days_text(limit)} in {_share(best.in_time or 0)} of the histories"
    return words + "."
