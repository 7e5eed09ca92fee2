"""Shows the stored runs of a folder over time, as JSON values, as lines for a terminal, and as a page with charts."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.campaign.run_store import Store, StoredRun, Wanted
from harness.gate.change_points import Change, changes
from harness.gate.stored_runs import by_reports
from harness.gate.trend_chart import Point, Step, sparkline, trend_chart
from harness.judge.verdict import Verdict
from harness.report import html_page, run_report
from harness.report.view import wasted_percent
from harness.report.words import DASH, percent, plain, seconds, short_commit

SCHEMA = 1
DRAWN_MAX = 200  # most runs of a drawn series
CHART_MIN = 3  # least runs with a value for a chart: fewer show no trend
PROVEN = (Verdict.PASS, Verdict.FAIL)
READ_MAX = 2000  # most runs read, the newest first


@dataclass(frozen=True)
class Moment(StoredRun):
    """A judged run with its main measurements. `recovery_s` is the recovery time in seconds, or `None` if not measured.
    `waste_percent` is the percentage of GPU time that faults wasted, or `None` if not measured."""

    profile: str | None
    recovery_s: float | None
    waste_percent: float | None
    never: bool = False  # the job did no step, or never made progress again


def moments(reports: pathlib.Path, wanted: Wanted) -> tuple[list[Moment], list[str]]:
    """Returns the judged runs that fit the filter `wanted`, newest first, and a message for each unusable folder."""
    store = Store(reports)
    return [_moment(run, report) for run, report in by_reports(store, wanted, READ_MAX)], store.notes


def _moment(run: StoredRun, report: run_report.Report) -> Moment:
    time, worked = report.recovery_time, report.run.furthest_step != 0
    never = time.seconds is None and any(episode.seconds is None for episode in time.episodes)
    return Moment(
        **vars(run),
        profile=report.profile,
        recovery_s=time.seconds if worked else None,
        waste_percent=wasted_percent(report),
        never=never or not worked,
    )


@dataclass(frozen=True)
class Series:
    scenario: str
    profile: str | None
    backend: str
    moments: Sequence[Moment]
    older: int = 0  # number of older runs that are left out

    @property
    def name(self) -> str:
        return f"{self.scenario} ({self.profile})" if self.profile else self.scenario

    def changes(self, figure: str) -> list[Change]:
        """Returns the lasting changes of the measurement `figure` over the passed and failed runs. The index of each
        change is an index into `moments`, which also holds inconclusive and invalid runs."""
        places = [i for i, each in enumerate(self.moments) if self.value(each, figure) is not None]
        found = changes([getattr(self.moments[i], figure) for i in places])
        return [Change(places[each.at], each.before, each.after, each.p) for each in found]

    def value(self, moment: Moment, figure: str) -> float | None:
        value: float | None = getattr(moment, figure)
        return value if moment.verdict in PROVEN else None


WITHOUT = {"recovery_s": "never", "waste_percent": "no step"}  # words for failed runs without the figure
FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "recovery_s": ("Recovery time", seconds),
    "waste_percent": ("GPU time wasted by faults", percent),
}


def series_of(moments: Sequence[Moment]) -> list[Series]:
    groups: dict[tuple[str, str, str], list[Moment]] = {}
    for each in sorted(moments, key=lambda each: each.begun_s):
        groups.setdefault((each.scenario, each.profile or "", each.backend), []).append(each)
    return [
        Series(name, profile or None, backend, runs[-DRAWN_MAX:], max(0, len(runs) - DRAWN_MAX))
        for (name, profile, backend), runs in sorted(groups.items())
    ]


def to_json(moments: Sequence[Moment]) -> dict[str, Any]:
    """Returns the stored runs, newest first, and all lasting changes of measurements as JSON values."""
    runs = [
        {
            "run_id": each.run_id,
            "begun_at": each.begun_at,
            "scenario": each.scenario,
            "profile": each.profile,
            "backend": each.backend,
            "commit": each.commit or None,
            "verdict": each.verdict,
            "recovery_seconds": each.recovery_s,
            "waste_percent_by_faults": each.waste_percent,
        }
        for each in sorted(moments, key=lambda each: -each.begun_s)
    ]
    found = []
    for one, figure in itertools.product(series_of(moments), FIGURES):
        for change in one.changes(figure):
            first, ratio = one.moments[change.at], change.ratio if change.before else None
            told: dict[str, Any] = {"scenario": one.scenario, "profile": one.profile, "backend": one.backend}
            told |= {"figure": figure, "first_run": first.run_id, "commit": first.commit or None}
            found.append(told | {"before": change.before, "after": change.after, "ratio": ratio, "p": change.p})
    return {"schema": SCHEMA, "runs": runs, "changes": found}


def change_words(one: Series, figure: str, change: Change) -> str:
    title, show = FIGURES[figure]
    first = one.moments[change.at]
    commit = f", commit {short_commit(first.commit)}" if first.commit else ""
    ratio = f" ({change.ratio:.2f} ×)" if change.before else ""
    levels = f"from {show(change.before)} to {show(change.after)}{ratio}"
    return f"{title} changed {levels} with {first.run_id}{commit}"


def render(moments: Sequence[Moment], wanted: str = "") -> str:
    shown = [_drawn(one) for one in series_of(moments)]
    title = f"History of {wanted}" if wanted else "History"
    days = sorted({each.begun_at[:10] for each in moments})
    told = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    values = {"title": title, "series": shown, "runs": len(moments), "days": told}
    return html_page.fill(f"{__package__}/history.jinja", with_script=True, **values)


def _drawn(one: Series) -> dict[str, Any]:
    charts: list[tuple[str, list[Markup] | None]] = []
    said, cells = list[str](), list[tuple[str, Markup]]()
    for figure, (title, show) in FIGURES.items():
        found = one.changes(figure)
        points = [_point(one, each, figure, show) for each in one.moments]
        steps = [Step(each.at, change_words(one, figure, each)) for each in found]
        said += [step.story for step in steps]
        drawn = [trend_chart(title, points, steps, show, WITHOUT[figure], narrow) for narrow in (False, True)]
        told = [point.value for point in points if point.value is not None]
        many = len(told) + sum(point.above for point in points) >= CHART_MIN
        charts.append((title, drawn if many else None))
        line = sparkline([point.value for point in points], f"{title} of {one.name}, from the oldest run to the newest")
        cells.append((show(told[-1]) if told else DASH, line))
    counts = {verdict: sum(each.verdict is verdict for each in one.moments) for verdict in Verdict}
    told_counts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    rows = [_row(each) for each in reversed(one.moments)]
    listed = "The run" if len(rows) == 1 else f"All {len(rows)} runs"
    if one.older:
        listed = f"The newest {len(rows)} of {len(rows) + one.older:,} runs"
    head = {"name": one.name, "backend": one.backend, "charts": charts, "drawn": any(drawn for _, drawn in charts)}
    head |= {"changes": said, "cells": cells, "rows": rows, "listed": listed}
    return head | {"counts": counts, "told": told_counts}


def _point(one: Series, each: Moment, figure: str, show: Callable[[float | None], str]) -> Point:
    value = one.value(each, figure)
    without = value is None and each.never and each.verdict is Verdict.FAIL
    unknown = WITHOUT[figure] if without else "no comparable value was measured"
    story = f"{each.run_id}\n{each.verdict}: {show(value) if value is not None else unknown}\n{each.begun_at}"
    story += f"\ncommit {short_commit(each.commit)}" if each.commit else ""
    return Point(value, str(each.verdict), short_commit(each.commit), each.begun_at[:10], story, without)


def _row(each: Moment) -> dict[str, Any]:
    return {
        "run_id": each.run_id,
        "begun": each.begun_at[:16].replace("T", " "),
        "commit": short_commit(each.commit) or DASH,
        "verdict": each.verdict,
        "recovery": seconds(each.recovery_s),
        "waste": percent(each.waste_percent),
        "headline": plain(each.headline),
    }
