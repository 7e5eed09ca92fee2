"""Draws charts of a forecast: results for several values of one setting as a curve, and amounts as bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from harness.report.charts import svg

Show = Callable[[float], str]
TOP, BOTTOM = 22.0, 170.0
BARS_MAX = 12
ROW = 24.0


def choice_chart(
    title: str,
    tried: Sequence[tuple[float, float]],
    marked: Sequence[tuple[str, float]],
    shows: tuple[Show, Show],
    logarithmic: bool = False,
    narrow: bool = False,
) -> Markup | None:
    """Draws a curve of a forecast's results over the values of one setting, such as days over the checkpoint interval.
    `tried` holds pairs of a setting's value and the result. `marked` holds labels, each with the value at which the
    label is drawn. `shows` holds two functions, to format values and to format results."""
    told = sorted(
        (value, came) for value, came in tried if math.isfinite(value + came) and (value > 0 or not logarithmic)
    )
    if len(told) < 2:
        return None

    def place(value: float) -> float:
        return math.log(value) if logarithmic else value

    show_x, show_y = shows
    x = svg.Scale(place(told[0][0]), place(told[-1][0]), 64.0 if narrow else 92.0, 320.0 if narrow else 1030.0)
    low, high = min(came for _, came in told), max(came for _, came in told)
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    y = svg.Scale(low - room, high + room, BOTTOM, TOP)
    parts = [svg.text(x.start, TOP - 8, title, "panel-title"), svg.line(x.start, BOTTOM, x.stop, BOTTOM, "axis")]
    for value in svg.round_ticks(y.low, y.high, 4):
        parts.append(svg.line(x.start, y(value), x.stop, y(value), "grid"))
        parts.append(svg.text(x.start - 6, y(value) + 4, show_y(value), "tick", "end"))
    parts.append(svg.polyline([(x(place(value)), y(came)) for value, came in told], "run"))
    free = -math.inf
    for value, came in told:
        at = x(place(value))
        dot = svg.tag("circle", cx=at, cy=y(came), r=3.5, class_="mark-pass")
        parts.append(svg.tag("g", svg.tag("title", f"{show_x(value)}: {show_y(came)}"), dot))
        if at - free > (70 if narrow else 80):
            parts.append(svg.text(at, BOTTOM + 16, show_x(value), "tick", "middle"))
            free = at
    known = dict(told)
    names: dict[float, list[str]] = {}
    for name, value in marked:
        names.setdefault(value, []).append(name)
    for value, said in names.items():
        if value in known:
            at = x(place(value))
            parts.append(svg.line(at, TOP, at, BOTTOM, "change"))
            left = at > (x.start + x.stop) / 2
            parts.append(
                svg.text(at + (-5 if left else 5), TOP + 9, " and ".join(said), "caption", "end" if left else "start")
            )
    label = f"{title}: " + ", ".join(f"{show_x(value)} {show_y(came)}" for value, came in told)
    return svg.picture(x.stop + 34, BOTTOM + 24, label, parts)


def bars_chart(title: str, bars: Sequence[tuple[str, float]], show: Show, narrow: bool = False) -> Markup | None:
    told = sorted(
        ((name, value) for name, value in bars if value > 0 and math.isfinite(value)), key=lambda each: -each[1]
    )
    told = told[:BARS_MAX]
    if not told:
        return None
    left, right = (8.0, 270.0) if narrow else (300.0, 980.0)
    row = ROW + (16.0 if narrow else 0.0)
    x, parts = svg.Scale(0.0, told[0][1], left, right), list[Markup]()
    for i, (name, value) in enumerate(told):
        top = i * row
        parts.append(svg.text(left, top + 13, name) if narrow else svg.text(left - 12, top + 15, name, "", "end"))
        top += 16.0 if narrow else 0.0
        parts.append(svg.rect(left, top + 3, max(x(value) - left, 1.0), 15, "bar-now", f"{name}: {show(value)}"))
        parts.append(svg.text(x(value) + 6, top + 15, show(value), "tick"))
    return svg.picture(right + 88, len(told) * row + 4, title, parts)
