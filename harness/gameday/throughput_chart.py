"""Draws how many steps per second a job did over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from harness.report.charts import svg

Floats = npt.NDArray[np.float64]
BIN_WIDTH = 6.0  # px
TOP, BOTTOM = 14.0, 130.0


def throughput_chart(at_s: Floats, step: Floats, now_s: float, narrow: bool = False) -> Markup | None:
    """Draws steps per second over time. `step` holds the number of steps done until each time in `at_s` (seconds),
    repeated steps included. Returns `None` if there are fewer than two points."""
    if len(step) < 2 or now_s <= 0:
        return None
    x = svg.Scale(0.0, now_s, 46.0 if narrow else 64.0, 334.0 if narrow else 1054.0)
    edges = np.linspace(0.0, now_s, max(2, int((x.stop - x.start) / BIN_WIDTH)) + 1)
    done = np.cumsum(np.maximum(np.diff(step, prepend=step[0]), 0.0))
    rates = np.diff(np.interp(edges, at_s, done)) / np.diff(edges)
    y = svg.Scale(0.0, max(float(rates.max()), 1e-9) * 1.08, BOTTOM, TOP)
    parts = [svg.text(x.start, TOP - 3, "Steps a second", "panel-title"), svg.time_axis(x, TOP, BOTTOM, per_tick=90)]
    for value in svg.round_ticks(0.0, y.high, 3):
        parts.append(svg.line(x.start, y(value), x.stop, y(value), "grid"))
        parts.append(svg.text(x.start - 6, y(value) + 4, f"{value:g}", "tick", "end"))
    corners = [
        (x(float(at)), y(float(rate)))
        for pair, rate in zip(np.stack([edges[:-1], edges[1:]], 1), rates, strict=True)
        for at in pair
    ]
    parts.append(svg.polyline(corners, "run"))
    label = f"Steps a second over {svg.seconds_text(now_s)}, {rates[-1]:.3g} at the end"
    return svg.picture(x.stop + 26, BOTTOM + 22, label, parts)
