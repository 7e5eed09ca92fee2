"""Makes the HTML report, a single file without network access. The texts come from a `Report`, the charts from the
event log."""

import base64
import functools
import hashlib
import importlib.resources
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from harness.judge.facts.analysis import Analysis
from harness.report import commands, drawing, lanes, timeline_chart, view
from harness.report.charts import loss_curves, svg
from harness.report.run_report import NOT_HERE, Episode, Report
from harness.report.section import Section
from harness.report.words import (
    DASH,
    NAMES,
    PHASE_MEANING,
    expectation_name,
    gpu_seconds,
    minute,
    percent,
    plain,
    seconds,
    words,
)
from harness.units import counted

RECOVERY_LANES_MAX = 16
ROWS_MAX = 200  # of each table of log events
NOTHING_LOADED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
EPISODES_MAX = 3  # drawn; the table lists all


def render(report: Report, analysis: Analysis | None = None, sections: Sequence[Section] = ()) -> str:
    values = {**_page(report, analysis), **_log(report, analysis), "sections": sections}
    return fill("report.jinja", with_script=True, **values)


def fill(template: str, with_script: bool = False, **values: Any) -> str:
    """Fills a template of this package, with its style sheet and script. The page needs no network."""
    css, js = Markup(resource("report.css")), Markup(resource("report.js"))  # not escaped: our own files
    policy = script_policy(js) if with_script else NOTHING_LOADED
    return _environment().get_template(template).render(css=css, js=js, policy=policy, **values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        # Without what could turn the direction of text; Markup is our own.
        finalize=lambda value: plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters.update(nb=unbroken, step=next_step)
    environment.globals.update(words=words, expectation_name=expectation_name, minute=minute, seconds=seconds)
    environment.globals.update(counted=counted, gpu_seconds=gpu_seconds, percent=percent)
    return environment


_BEFORE_UNIT = re.compile(r"(?<=[≤≥]) (?=\d)|(?<=\d) (?=(?:%|×|µs|ms|s|min|h|GPU-s|GPU-h|steps?)(?![\w-]))")


def unbroken(words: object) -> str:
    text = _BEFORE_UNIT.sub("\u00a0", str(words))
    return Markup(text) if isinstance(words, Markup) else text


def next_step(text: str) -> Markup:
    before, command = commands.split(text)
    code = Markup("<code>{}</code>").format(command) if command else ""
    return Markup("{}{}").format(unbroken(before), code)


@functools.cache
def resource(name: str) -> str:
    """Returns the text of the file `PACKAGE/FILE`. A name without a package is a file in this folder."""
    package, _, file = name.rpartition("/")
    return (importlib.resources.files(package or __package__) / file).read_text(encoding="utf-8")


def script_policy(script: str) -> str:
    """Returns a content security policy by which browsers run only this script, in case the escaping of texts fails."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{NOTHING_LOADED}; script-src 'sha256-{digest}'"


def _page(report: Report, analysis: Analysis | None) -> dict[str, Any]:
    # What was trained, when, on how much, and how long it took, as far as report and log tell.
    trainer = drawing.trainer(analysis.run.plan) if analysis else ""
    begun = minute(report.begun_at) if report.begun_at else ""
    ranks = counted(report.run.ranks, "rank") if report.run.ranks else ""
    took = f"took {seconds(report.run.duration_s)}" if report.run.duration_s else ""
    lines, total = view.accounts(report)
    return {
        "report": report,
        "crumbs": [part for part in (trainer and f"trainer {trainer}", begun, ranks, took) if part],
        "view": view,
        "most_rows": ROWS_MAX,
        "most_episodes": EPISODES_MAX,
        "episodes": [_episode(report, number, episode) for number, episode in view.longest_first(report)],
        "accounts": lines,
        "total": total,
        "bars": _stacked(lines),
        "NOT_HERE": NOT_HERE,
        "metrics": view.metric_rows(report),
        "provenance": [(words(name), value) for name, value in report.provenance.items()],
        "names_not_here": _not_here,
    }


def _not_here(rows: Sequence[tuple[str, str]]) -> list[str]:
    names = [name for name, value in rows if value == NOT_HERE]
    return [name if name[:2].isupper() else name[:1].lower() + name[1:] for name in names]


def _log(report: Report, analysis: Analysis | None) -> dict[str, Any]:
    if analysis is None:
        return {"log": None, "charts": None}
    shown, few = drawing.curves(analysis), lanes.choose(analysis.run, RECOVERY_LANES_MAX)
    recoveries = dict(enumerate(analysis.run.episodes, start=1))
    drawn = [number for number, _ in view.longest_first(report)[:EPISODES_MAX] if number in recoveries]
    charts = timeline_charts(analysis) | {
        "recoveries": {n: _wide_and_narrow(timeline_chart.recovery_chart, recoveries[n], few) for n in drawn},
        "loss": _wide_and_narrow(loss_curves.loss_chart, shown),
        "step_time": _wide_and_narrow(loss_curves.step_time_chart, shown),
        "resumes": bool(shown.resumes),
    }
    plan = json.dumps(analysis.run.plan, indent=2, ensure_ascii=False, default=str)
    return {"log": drawing.log_lists(analysis.run), "charts": charts, "plan": plan}


def timeline_charts(analysis: Analysis) -> dict[str, Any]:
    run, cast = analysis.run, lanes.choose(analysis.run)
    draw, used = timeline_chart.timeline_chart, {phase.phase for phase in timeline_chart.job_phases(run)}
    return {
        "timeline": _wide_and_narrow(draw, cast),
        "cast": cast,
        "folded": [(each, _wide_and_narrow(draw, each)) for each in cast.folded if each.lanes],
        "phases": [phase for phase in NAMES if phase in used] + sorted(used - NAMES.keys()),  # as in a recovery
        "has_rolled_back": bool((~run.steps.survives).any()),
        "has_faults": bool(timeline_chart.struck(run)),
        "checkpoints": {how for how, _, _ in timeline_chart.finished_saves(run)},
        "has_deaths": any(lanes.died(life) for lane in cast.lanes for life in lane.lives),
    }


def _wide_and_narrow(draw: Callable[..., Markup | None], *what: object) -> list[Markup | None]:
    return [draw(*what, narrow=narrow) for narrow in (False, True)]


def _episode(report: Report, number: int, episode: Episode) -> dict[str, Any]:
    phase, longest = max(episode.phases.items(), key=lambda item: item[1], default=("unknown", 0.0))
    lasted = seconds(view.lasted_s(report, episode))
    return {
        "number": number,
        "title": f"Recovery {number}",
        "furthest": f"{episode.furthest_step:,}",
        "over": episode.seconds is not None,
        "at": seconds(episode.t_stop),
        "faults": ", ".join(episode.faults) or DASH,
        "lasted": lasted,
        "took": "never" if episode.seconds is None else lasted,
        "first": seconds(episode.first_step_seconds, "never"),
        "phase": words(phase),
        "meaning": PHASE_MEANING.get(phase, ""),
        "longest": seconds(longest),
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
