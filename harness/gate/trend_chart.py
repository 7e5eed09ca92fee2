"""Draws one measurement over many runs, with a mark for each run, and lines at the medians between change points (at
which the typical value changes)."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.report.charts import svg
from harness.units import counted

HEIGHT = 196.0
BELOW = 16.0  # px from the axis down to the row of runs without a value
ROOM = 72.0  # px of a label below the axis
MARGIN = 26.0  # px to the right of the axis
_ABOVE = 32.0  # px from the top to the row of runs that failed before they had a value
_SHAPES = {
    "pass": "M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "fail": "M{x} {y}m-4 -4l8 8m0 -8l-8 8",
    "inconclusive": "M{x} {y}m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    "invalid": "M{x} {y}m0 -5l5.5 9.5h-11z",
}


@dataclass(frozen=True)
class Point:
    value: float | None
    verdict: str
    commit: str  # below the axis where it changes, like the day
    day: str
    story: str
    above: bool = False  # the mark is in a row above the chart instead

    @property
    def known(self) -> float | None:
        return self.value if self.value is not None and math.isfinite(self.value) else None


@dataclass(frozen=True)
class Step:
    at: int
    story: str


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """Returns a small line chart of the values, from 0 to twice the median, or no chart for fewer than two values."""
    told = [value for value in values if value is not None and math.isfinite(value)]
    if len(told) < 2:
        return Markup("")
    high = 2 * statistics.median(told) or 1.0
    x, y = svg.Scale(0.0, len(values) - 1.0, 3.0, 97.0), svg.Scale(0.0, high, 21.0, 3.0)
    points = [
        (x(float(place)), math.nan if value is None else y(min(value, high))) for place, value in enumerate(values)
    ]
    return svg.picture(100, 24, label, [svg.polyline(points, "run")], "sparkline")


def trend_chart(
    title: str,
    points: Sequence[Point],
    steps: Sequence[Step],
    show: Callable[[float], str],
    above: str,
    narrow: bool = False,
) -> Markup:
    """Draws a mark for each run from left to right, a flag at each change point, and lines at the medians between
    change points. `above` labels the row above the chart, in which failed runs without a value are marked. A run
    without a value is marked below the axis, beside a `?`, unless `Point.above` is True."""
    told = [point.known for point in points if point.known is not None]
    high = min(max([*told, 0.0]) * 1.12, sys.float_info.max) or 1.0
    left, right = (46.0, 334.0) if narrow else (64.0, 1054.0)
    x = svg.Scale(-0.5, len(points) - 0.5, left, right)
    strip = any(point.above for point in points)
    y = svg.Scale(0.0, high, HEIGHT - 46, 58.0 if strip else 34.0)
    unknown = BELOW if any(point.known is None and not point.above for point in points) else 0.0
    parts = [svg.text(left, 12, title, "panel-title")]
    for value in svg.round_ticks(y.low, y.high, 4) if told else ():
        parts.append(svg.line(left, y(value), right, y(value), "grid"))
        parts.append(svg.text(left - 6, y(value) + 4, show(value), "tick", "end"))
    parts += _levels(points, steps, x, y)
    for step in steps:
        at = x(step.at - 0.5)
        flag = svg.tag("path", d=f"M{at:.1f} {y.stop - 4:.1f}l5 -6h-10z", class_="change-flag")
        line = svg.line(at, y.stop - 4, at, y.start, "change")
        parts.append(svg.tag("g", svg.tag("title", step.story), line, flag))
    parts += [_mark(point, x(i), y) for i, point in enumerate(points)]
    parts += [svg.text(left - 6, _ABOVE + 4, above, "tick", "end")] if strip else []
    parts += [svg.text(left - 6, y.start + unknown + 4, "?", "tick", "end")] if unknown else []
    parts.append(_labels([point.day for point in points], x, HEIGHT + unknown - 28))
    parts.append(_labels([point.commit for point in points], x, HEIGHT + unknown - 12))
    label = f"{title} of {counted(len(points), 'run')}" + "".join(f"; {step.story}" for step in steps)
    return svg.picture(right + MARGIN, HEIGHT + unknown, label, parts)


def _levels(points: Sequence[Point], steps: Sequence[Step], x: svg.Scale, y: svg.Scale) -> list[Markup]:
    edges = [0, *(step.at for step in steps), len(points)]
    parts = []
    for begin, end in itertools.pairwise(edges):
        values = sorted(point.value for point in points[begin:end] if point.value is not None)
        if values:
            height = y((values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)
            parts.append(svg.line(x(begin - 0.4), height, x(end - 0.6), height, "level"))
    return parts


def _mark(point: Point, x: float, y: svg.Scale) -> Markup:
    at = y.start + BELOW if point.known is None else y(point.known)
    at = _ABOVE if point.above else at
    shape = _SHAPES.get(point.verdict, _SHAPES["inconclusive"]).format(x=svg.number(x), y=svg.number(at))
    return svg.tag("g", svg.tag("title", point.story), svg.tag("path", d=shape, class_=f"mark-{point.verdict}"))


def _labels(labels: Sequence[str], x: svg.Scale, y: float) -> Markup:
    parts, free = [], -math.inf
    for i, label in enumerate(labels):
        at = min(x(i - 0.4), x.stop + MARGIN - ROOM)
        if label and (i == 0 or labels[i - 1] != label) and at >= free:
            parts.append(svg.text(at, y, label, "tick"))
            free = at + ROOM
    return svg.join(parts)
