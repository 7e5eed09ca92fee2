"""Draws the durations of two runs as pairs of horizontal bars, for example one pair for each phase of the recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from harness.report.charts import svg

Bar = tuple[str, float | None, float | None]  # name, before, after
Show = Callable[[float | None], str]
ROW = 40.0


def beside_chart(title: str, bars: Sequence[Bar], show: Show, narrow: bool = False) -> Markup:
    left, right = (8.0, 282.0) if narrow else (200.0, 980.0)
    row = ROW + (16.0 if narrow else 0.0)
    most = max((value or 0.0 for bar in bars for value in bar[1:]), default=0.0)
    x = svg.Scale(0.0, most or 1.0, left, right)
    parts = []
    for i, (name, before, after) in enumerate(bars):
        top = i * row
        parts.append(svg.text(x.start, top + 13, name) if narrow else svg.text(x.start - 12, top + 20, name, "", "end"))
        top += 18.0 if narrow else 0.0
        first = before, "bar-was", top + 1, f"{name}, first run"
        second = after, "bar-now", top + 17, f"{name}, second run"
        for value, class_, y, said in (first, second):
            end = max(x(value), x.start + 1.0) if value else x.start
            parts += [svg.rect(x.start, y, end - x.start, 14, class_, f"{said}: {show(value)}")] if value else []
            parts.append(svg.text(end + 6, y + 11, show(value), "tick"))
    return svg.picture(right + 76, len(bars) * row + 4, f"{title}, of both runs", parts)
