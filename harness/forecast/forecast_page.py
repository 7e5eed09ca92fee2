"""Shows a forecast in sections, which are the same on a terminal and on an HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from harness.forecast.advice import Tried
from harness.forecast.answer import (
    LOW_HIGH,
    Forecast,
    assumptions,
    big,
    days_text,
    dollars,
    hours_text,
    inputs,
    sentence,
)
from harness.forecast.choice_chart import bars_chart, choice_chart
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
FIRST = 2  # assumptions that stand beside the answer
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
CAUSES, WORTH, INTERVAL = "Wasted by cause", "Where the next second is worth most", "Checkpoint interval"
SPARES, WHAT_IF, MONEY, SPENT = "Spares", "What if", "Money", "Where the GPU-hours go"
MARKET = (
    "Spot and on demand is another market: all spot nodes are there or none. Greedy takes them whenever it can, and on "
    "demand only when the deadline presses; uniform progress also when the work lags behind; omniscient knows the "
    "future, so that nobody does better there."
)
TRIED = "The row of what is taken now is the answer above; the others differ from it as they did on the same dice."
SET = "Each is set with --set NAME=VALUE and varied with --what-if NAME=0.5x; so are failure_rate and recovery."


def sections(found: Forecast) -> list[Section]:
    known = sorted(inputs(found), key=lambda each: list(Origin).index(each.origin))
    rows = [(each.name, each.value, str(each.origin), each.source, each.about) for each in known]
    head = ("input", "value", "origin", "source", "meaning")
    told = [_outcome(found), *([_money(found, found.money)] if found.money else []), _accounts(found), _causes(found)]
    told += [_worth(found), _interval(found), _spares(found), *([_what_ifs(found)] if found.what_ifs else [])]
    told.append(Section("What it rests on", [SET], head, rows, all_text=True))
    return [*told, Section("Beyond these inputs it is assumed", assumptions(found)[FIRST:])]


def rests_on(found: Forecast) -> list[str]:
    return assumptions(found)[:FIRST]


def render(found: Forecast) -> str:
    total, at, bars = found.outcome.gpu_hours.mean, 0.0, list[tuple[Markup, str, str]]()
    for name, amount in found.outcome.accounts.items():
        label, colour = ACCOUNTS[name]
        title = f"{label}: {percent(100 * amount / total)}"
        if amount:
            bars.append((svg.rect(at, 0, 1000 * amount / total, 34, f"p-{colour}", title), colour, title))
        at += 1000 * amount / total
    histories = counted(found.question.samples, "simulated history", "simulated histories")
    shown = sections(found)
    values: dict[str, Any] = {
        "sentence": sentence(found),
        "rests_on": rests_on(found),
        "crumbs": [histories, f"seed {found.question.seed}"],
        "cards": shown[0].rows[:CARDS],
        "bars": bars,
        "charts": {title: drawn for title, drawn in _charts(found).items() if drawn} | {SPENT: []},  # the bar above
    }
    return html_page.fill(f"{__package__}/forecast.jinja", title="Forecast", sections=shown, **values)


Drawn = list[list[Markup | None]]  # charts of a section, each wide and narrow


def _charts(found: Forecast) -> dict[str, Drawn]:
    advice, settings = found.advice, found.job.settings
    every, spares = settings["checkpoint_every"].mean, settings["spares"].mean
    best_every, best_spares = advice.best_interval, advice.best_spares
    of_intervals = [("taken now", every), *([("best", best_every.value)] if best_every else [])]
    of_spares = [("taken now", spares), *([("best", best_spares.value)] if best_spares else [])]
    intervals = [(each.value, each.days) for each in advice.intervals]
    stand_by = [(each.value, each.gpu_hours) for each in advice.spares]
    money = [(each.name, each.dollars.mean) for each in found.money.purchases] if found.money else []
    made = {
        INTERVAL: [partial(choice_chart, "Time to complete", intervals, of_intervals, (seconds, _days), True)],
        SPARES: [partial(choice_chart, "GPU-hours paid", stand_by, of_spares, (_whole, _whole))],
        CAUSES: [partial(bars_chart, CAUSES, [(each.name, each.gpu_hours) for each in found.outcome.causes], big)],
        WORTH: [partial(bars_chart, "GPU-hours of all", [(each.what, each.of_all) for each in advice.worth], big)],
        WHAT_IF: [
            partial(bars_chart, "GPU-hours saved", [(w.change, w.saved_gpu_hours.mean) for w in found.what_ifs], big)
        ],
        MONEY: [partial(bars_chart, "Dollars", money, dollars)],
    }
    drawn = {
        title: [[draw(narrow=narrow) for narrow in (False, True)] for draw in draws] for title, draws in made.items()
    }
    return {title: [pair for pair in pairs if pair[0] is not None] for title, pairs in drawn.items()}


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _days(days: float) -> str:
    return days_text(days) if math.isfinite(days) else "not done"


def _share(value: float) -> str:
    return percent(100 * value)


def _priced(found: Forecast, gpu_hours: float) -> list[str]:
    return [dollars(gpu_hours * found.money.dollars_of_a_gpu_hour)] if found.money else []


def _outcome(found: Forecast) -> Section:
    out = found.outcome

    def row(name: str, values: Range, show: Callable[[float], str]) -> tuple[str, ...]:
        return name, show(values.mean), show(values.low), show(values.high)

    rows = [row("Time to complete", out.days, _days)]
    if found.money:
        rows.append(row("Dollars paid, all on demand", found.money.on_demand.dollars, dollars))
        rows.append(row("Dollars wasted, part of these", found.money.wasted_dollars, dollars))
    rows += [
        row("GPU-hours paid, with spares", out.gpu_hours, big),
        row("GPU-hours wasted, part of these", out.wasted_gpu_hours, big),
        row("ETTR: work over time", out.ettr, _share),
        row("Goodput: work over all that is paid", out.goodput, _share),
        row("Failures", out.failures, lambda value: f"{value:,.0f}"),
        row("First failure, median", out.first_h, lambda hours: hours_text(hours) if math.isfinite(hours) else "none"),
    ]
    words = ["Low and high: 5 % of the histories lie below the one, and 5 % above the other."]
    late = f"{_share(1 - out.finished)} of the histories are given up, not done after {PATIENCE:g} times the work."
    words += [late] if out.finished < 1 else []
    return Section("The answer", words, ("", "mean", *LOW_HIGH), rows)


def _accounts(found: Forecast) -> Section:
    total = found.outcome.gpu_hours.mean
    rows = [
        (ACCOUNTS[name][0], big(amount), percent(100 * amount / total), *_priced(found, amount))
        for name, amount in found.outcome.accounts.items()
    ]
    return Section(SPENT, (), ("", "GPU-hours", "share", *["dollars"] * bool(found.money)), rows)


def _causes(found: Forecast) -> Section:
    rows = [
        (each.name, f"{each.failures:,.1f}", big(each.gpu_hours), *_priced(found, each.gpu_hours))
        for each in found.outcome.causes
    ]
    lost, wasted = sum(each.gpu_hours for each in found.outcome.causes), found.outcome.wasted_gpu_hours.mean
    words = f"What outages took and lost, {big(lost)} of the {big(wasted)} GPU-hours wasted. "
    words = words + "The rest is spares, checkpoints and a slower pace." if rows else "Nothing fails."
    return Section(CAUSES, [words], ("", "failures", "GPU-hours", *["dollars"] * bool(found.money)), rows)


def _worth(found: Forecast) -> Section:
    worth = found.advice.worth
    words = f"The most is lost by this: {worth[0].what}." if worth else "Nothing is lost."
    if longer := [each for each in worth if each.seconds >= 1]:
        most = max(longer, key=lambda each: each.of_a_second)
        words += f" A second less each time is worth the most of this: {most.what}; {big(most.of_a_second)} GPU-hours."
    saved = [big(each.of_a_second) if each in longer else DASH for each in worth]
    rows = [
        (each.what, big(each.times), seconds(each.seconds), second, big(each.of_all))
        for each, second in zip(worth, saved, strict=True)
    ]
    head = ("", "times", "takes on average", "GPU-h of a second less", "GPU-h of all")
    return Section(WORTH, [words], head, rows)


def _interval(found: Forecast) -> Section:
    advice, now = found.advice, found.job.settings["checkpoint_every"]
    words = f"This forecast saves after each {seconds(now.mean)} of work ({now.origin}). "
    if (best := advice.best_interval) is None:
        return Section(INTERVAL, [f"{words}Without a stall or a failure, no interval is the best."])
    words += f"Of those tried, {seconds(best.value)} is done first{_less(best, now.mean, advice.intervals)}. "
    words += f"Young's formula says {seconds(advice.young_s)}, Daly's {seconds(advice.daly_s)}."
    rows = [(seconds(each.value), _days(each.days), f"{each.gpu_hours:,.0f}") for each in advice.intervals]
    return Section(INTERVAL, [words, TRIED], ("a save after", "time to complete", "GPU-hours paid"), rows)


def _less(best: Tried, now: float, tried: Sequence[Tried]) -> str:
    usual = next(each for each in tried if each.value == now).gpu_hours
    return "" if best.value == now else f", with {percent(100 * (1 - best.gpu_hours / usual))} fewer GPU-hours"


def _spares(found: Forecast) -> Section:
    if (best := found.advice.best_spares) is None:
        return Section(SPARES, ["No failure takes a node for longer, so no spare is needed."])
    now, nodes = found.job.settings["spares"], found.question.nodes
    words = f"{nodes + now.mean:,.0f} nodes are paid: {nodes:,} work, {now.mean:,.0f} stand by ({now.origin}). "
    words += f"Of those tried, {best.value:,.0f} cost the least{_less(best, now.mean, found.advice.spares)}."
    rows = [(f"{each.value:,.0f}", _days(each.days), f"{each.gpu_hours:,.0f}") for each in found.advice.spares]
    return Section(SPARES, [words, TRIED], ("nodes that stand by", "time to complete", "GPU-hours paid"), rows)


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
    return Section(WHAT_IF, [words], ("", "time to complete", "ETTR", "GPU-hours saved", *LOW_HIGH), rows)


def _money(found: Forecast, money: Money) -> Section:
    prices = money.prices
    cost = f"A node-hour of {counted(found.question.gpus_per_node, 'GPU')} costs ${prices.on_demand:,.2f} on demand"
    words = [f"{cost}." if prices.spot is None else f"{cost}, ${prices.spot:,.2f} on spot.", _best(money)]
    words += [] if prices.spot is None else [_breakeven(found, money)]
    words += [MARKET] if any(each.is_bound for each in money.purchases) else []
    head = ["", "dollars", *LOW_HIGH, "time to complete", f"time, {LOW_HIGH[1]}"]
    head += [] if prices.deadline_days is None else ["by the deadline"]
    head += [] if prices.per_s is None else [f"{prices.unit} a dollar"]
    rows = [
        (
            each.name,
            *map(dollars, (each.dollars.mean, each.dollars.low, each.dollars.high)),
            *map(_days, (each.days.mean, each.days.high)),
            *([] if each.in_time is None else [_share(each.in_time)]),
            *([] if each.per_dollar is None else [big(each.per_dollar)]),
        )
        for each in money.purchases
    ]
    return Section(MONEY, words, head, rows)


def _breakeven(found: Forecast, money: Money) -> str:
    if money.breakeven_reclaims is None:
        return "Spot costs as much as on demand, or more: it never pays."
    nodes, taken = found.question.nodes, found.job.settings["spot_reclaims"]
    up_to = f"{big(nodes * money.breakeven_reclaims)} reclaims a day of the {counted(nodes, 'node')} at work"
    words = f"Even without spares, spot costs less up to {up_to} ({money.breakeven_reclaims:.2g} per node-day). "
    words += f"This forecast takes {big(nodes * taken.mean)} a day ({taken.mean:.2g} per node-day, {taken.origin}), "
    return words + "and that another node can always be had."


def _best(money: Money) -> str:
    best, limit = money.best, money.prices.deadline_days
    if best is None:
        return f"Nothing is done by the deadline of {days_text(limit or 0)} in {100 * IN_TIME:g} % of the histories."
    words = f"The cheapest is: {best.name}; {dollars(best.dollars.mean)}"
    if best is not money.on_demand:
        words += f", {percent(100 * (1 - best.dollars.mean / money.on_demand.dollars.mean))} less than on demand"
    if limit is not None:
        words += f". It is done by the deadline of {days_text(limit)} in {_share(best.in_time or 0)} of the histories"
    return words + "."
