"""The HTML report: one file that needs no network, made from a Scorecard alone."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import json
import re
from typing import Any

import jinja2
from markupsafe import Markup

from harness.judge.score import Scorecard
from harness.report import view
from harness.report.charts import gantt, loss, svg
from harness.report.charts import lanes as ranks
from harness.timeline.timeline import Episode, Timeline

RECOVERY_LANES_MAX = 12
ROWS_MAX = 200  # of each table of log events
NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
EPISODES_MAX = 3  # drawn; the table lists all


def render(card: Scorecard) -> str:
    """The page. Everything that comes from a log or a scenario is escaped by the template or by `svg.tag`."""
    script = _resource("report.js")
    more = {"js": Markup(script), **_page(card), **_charts(card), **_tables(card)}
    return fill("report.jinja", _script_policy(script), **more)


def fill(template: str, policy: str = NOTHING_LOADED, **values: Any) -> str:
    """A page of our templates, with our style sheet in it."""
    css = Markup(_resource("report.css"))  # not escaped: our own file
    return _environment().get_template(template).render(css=css, policy=policy, **values)


@functools.cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_resource)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["nb"] = unbroken
    environment.globals.update(words=view.words, expectation_name=view.expectation_name, line_sample=_line_sample)
    return environment


_BEFORE_UNIT = re.compile(r"(?<=[≤≥]) (?=\d)|(?<=\d) (?=(?:%|µs|ms|s|min|h|GPU-s|GPU-h|steps?)(?![\w-]))")


def unbroken(words: object) -> str:
    """No line break between a number and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", str(words))


@functools.cache
def _resource(name: str) -> str:
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def _script_policy(script: str) -> str:
    """Only our own script may run: a second wall behind the escaping."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{NOTHING_LOADED}; script-src 'sha256-{digest}'"


def _page(card: Scorecard) -> dict[str, Any]:
    return {
        "card": card,
        "headline": view.headline(card),
        "reasons": view.reasons(card),
        "not_judged": view.not_judged(card),
        "figures": view.figures(card),
        "reproduce": view.reproduce(card),
        "most_rows": ROWS_MAX,
        "most_episodes": EPISODES_MAX,
    }


def _charts(card: Scorecard) -> dict[str, Any]:
    run = card.evidence.run
    cast, compared = ranks.choose(run), loss.drawn(card.evidence)
    return {
        "timeline": [gantt.timeline_chart(run, cast, narrow) for narrow in (False, True)],
        "timeline_words": _timeline_words(run, cast.total),
        "phases": gantt.phases_used(run),
        "has_rolled_back": bool((~run.steps.survives).any()),
        "has_faults": any(fault.injected is not None for fault in run.faults),
        "has_failed_exits": any(ranks.died(p) for p in run.processes),
        "episodes": _episodes(run),
        "loss": [loss.loss_chart(compared, narrow) for narrow in (False, True)],
        "step_time": [loss.step_time_chart(compared, narrow) for narrow in (False, True)],
        "loss_words": _loss_words(card),
        "resumes": loss.resume_steps(run),
    }


def _tables(card: Scorecard) -> dict[str, Any]:
    run = card.evidence.run
    lines, total = view.accounts(card)
    committed = [e for e in run.checkpoints if e.get("event") != "checkpoint.started"]
    return {
        "accounts": lines,
        "total": total,
        "bars": _stacked(lines),
        "wasted": _wasted(card),
        "baseline_words": view.baseline_words(card) if lines else "",
        "closed_forms": (expected := view.closed_forms(card)),
        "closed_forms_words": view.closed_forms_words(card) if expected else "",
        "has_reasons": any(e.reason for e in card.expectations),
        "faults": view.fault_rows(card),
        "notices": view.event_rows(run.notices, run),
        "anomalies": view.event_rows(run.anomalies, run),
        "checkpoints": view.event_rows(committed, run),
        "problems": view.problems(run),
        "metrics": view.metric_rows(card),
        "environment": view.flat(card.environment),
        "plan": json.dumps(run.plan, indent=2, ensure_ascii=False, default=str),
    }


def _timeline_words(run: Timeline, total: int) -> str:
    lasted = svg.seconds_text((run.end - run.begin) / 1e9)
    if not len(run.steps):
        return f"The run lasted {lasted}; no step was completed."
    furthest = int(run.steps.step.max())
    words = f"{furthest:,} steps on {total:,} {'rank' if total == 1 else 'ranks'} in {lasted}."
    if total > ranks.LANES_MAX:
        words += f" Drawn are the {ranks.LANES_MAX} ranks that fared worst, worst first, below one lane for all."
    if run.outcome != "completed":
        reason = f": {run.outcome_reason}" if run.outcome_reason else ""
        words += f" The run ended as {run.outcome or 'unknown: the harness itself died'}{reason}."
    return words


def _loss_words(card: Scorecard) -> str:
    if not len(card.evidence.run.steps):
        return "No step was completed, so there is no loss to show."
    if card.evidence.twin is None:
        return "There is no fault-free twin to compare with."
    words = "Compared step by step with a run of the same seed without faults"
    mode = card.scores.get("loss_continuity", {}).get("mode")
    words += f" (mode {mode}): " if mode else ": "
    return words + view.continuity_words(card) + "."


def _episodes(run: Timeline) -> list[dict[str, Any]]:
    """The longest first, as they are drawn."""
    cast = ranks.choose(run, RECOVERY_LANES_MAX)
    ordered = view.longest_first(run)
    drawn = [
        [gantt.episode_chart(run, episode, cast, narrow) for narrow in (False, True)]
        for _, episode in ordered[:EPISODES_MAX]
    ]
    rest: list[list[Markup]] = [[] for _ in ordered[EPISODES_MAX:]]
    return [
        _episode(run, number, episode) | {"charts": charts}
        for (number, episode), charts in zip(ordered, drawn + rest, strict=True)
    ]


def _episode(run: Timeline, number: int, episode: Episode) -> dict[str, Any]:
    took = "never" if episode.t_regained is None else svg.seconds_text((episode.end - episode.t_stop) / 1e9)
    first = "never" if episode.t_first is None else svg.seconds_text((episode.t_first - episode.t_stop) / 1e9)
    sums = view.phase_sums(episode)
    phase, longest = max(sums, key=lambda item: item[1], default=("unknown", 0))
    if episode.t_regained is None:
        words = f"Progress stopped after step {episode.furthest_step:,} and never came back"
        words += f": {svg.seconds_text((episode.end - episode.t_stop) / 1e9)} until the end of the run."
    else:
        words = f"Progress stopped after step {episode.furthest_step:,} and passed it again {took} later"
        words += f"; the first new step was done after {first}."
    return {
        "number": number,
        "title": f"Recovery {number}",
        "words": words + f" The longest phase: {view.words(phase).lower()}, {svg.seconds_text(longest / 1e9)}.",
        "at": view.from_begin(run, episode.t_stop),
        "faults": ", ".join(episode.faults) or view.DASH,
        "took": took,
        "first": first,
        "longest": f"{view.words(phase)}, {svg.seconds_text(longest / 1e9)}",
    }


def _stacked(lines: list[view.Account]) -> list[Markup]:
    total = sum(line.share for line in lines) or 1.0
    bars, at = [], 0.0
    for line in lines:
        width = 1000 * line.share / total
        title = f"{line.label}: {line.seconds} GPU-s, {line.percent}"
        bars.append(svg.rect(at, 0, width, 34, f"p-{line.name}", title))
        at += width
    return bars


def _wasted(card: Scorecard) -> str:
    values = card.scores.get("wasted_gpu_hours", {})
    amount = values.get("gpu_seconds_wasted")
    shown = view.gpu_seconds(float(amount)) if isinstance(amount, int | float) else view.DASH
    words = (
        f"{shown} ({view.percent(values.get('percent'))}), by faults {view.percent(values.get('percent_by_faults'))}"
    )
    dollars = values.get("dollars_wasted")
    return words + (f", ${dollars:,.2f}" if isinstance(dollars, int | float) else "")


def _line_sample(class_: str) -> Markup:
    path = svg.tag("path", d="M0 6h16", class_=class_)
    return svg.tag("svg", path, viewBox="0 0 16 12", aria_hidden="true")
