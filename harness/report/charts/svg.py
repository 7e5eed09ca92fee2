"""Provides drawing functions for all charts: escaped SVG elements, scales, ticks, and the thinning of long series."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from harness.report.words import plain
from harness.units import format_duration

Floats = npt.NDArray[np.float64]
_TICK_STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400]
_SPAN_MIN = 1e-300
MARK_GAP = 12.0  # px; marks nearer than this are drawn as one
Mark = TypeVar("Mark")


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Returns one SVG element. Children and attributes are escaped unless they are `Markup`; those that are `None` are
    left out."""
    parts = []
    for key, value in attributes.items():
        if value is not None:
            text = number(value) if isinstance(value, float) else value
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{_safe(text)}"')
    inside = "".join(_safe(child) for child in children if child is not None)
    return Markup(f"<{name}{''.join(parts)}>{inside}</{name}>")


def _safe(value: object) -> Markup:
    return value if isinstance(value, Markup) else escape(plain(value))


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def rect(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    tip = tag("title", title) if title else None
    width = float(max(width, 0))
    return tag("rect", tip, x=float(x), y=float(y), width=width, height=float(height), class_=class_)


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "start") -> Markup:
    return tag("text", words, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def picture(width: float, height: float, label: str, parts: Iterable[Markup], class_: str = "") -> Markup:
    box = f"0 0 {number(width)} {number(height)}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=label, class_=class_ or None)


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.stop - self.start) if span else self.start

    def clamp(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))


def near(marks: Iterable[Mark], at: Callable[[Mark], float]) -> list[list[Mark]]:
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=at):
        if groups and at(mark) - at(groups[-1][-1]) < MARK_GAP:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return groups


def time_step(span_s: float, count: int) -> float:
    """Returns a round number of seconds between two of about `count` ticks, or 0 if the span cannot be divided."""
    wanted = _part(span_s, count)
    if wanted < 1:
        return _round_up(wanted)
    return next((s for s in _TICK_STEPS_S if s >= wanted), math.ceil(wanted / 86400) * 86400)


def time_label(seconds: float, step_s: float) -> str:
    """Formats seconds as `0.2 s`, `15 s`, `2 min` or `1 h 30 min`, with as many digits as ticks every `step_s` seconds
    need."""
    if seconds < 0:
        return "-" + time_label(-seconds, step_s)
    if step_s < 1:
        return f"{seconds:.{max(0, -math.floor(math.log10(step_s)))}f} s"
    if step_s < 60 and seconds < 600:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"


def round_ticks(low: float, high: float, count: int) -> list[float]:
    return multiples(_round_up(_part(high - low, count)), low, high) or [low]


def multiples(step: float, low: float, high: float) -> list[float]:
    """Returns the multiples of `step` from `low` to `high`. The caller must choose `step` so that the list is short."""
    if not step:
        return []
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _part(span: float, count: int) -> float:
    return span / max(count, 1) if _SPAN_MIN < span < math.inf else 0.0


def _round_up(value: float) -> float:
    if not value:
        return 0.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= value * (1 - 1e-9))


def thin(x: Floats, y: Floats, buckets: int) -> tuple[Floats, Floats]:
    """Returns at most about `4 * buckets` of the points, whose line looks like the line of all points. The first, last,
    lowest and highest point of each bucket are kept, so that no spike is lost. Non-finite values of y stay as gaps.

    `x` and `y` have shape (n,), `x` ascending.
    """
    if len(x) <= 4 * buckets:
        return x, y
    keep: set[int] = set()
    for part in np.array_split(np.arange(len(x)), buckets):
        keep.update((int(part[0]), int(part[-1])))
        finite = part[np.isfinite(y[part])]
        if len(finite):
            keep.update((int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])))
        if len(finite) < len(part):
            keep.add(int(part[~np.isfinite(y[part])][0]))
    index = np.array(sorted(keep))
    return x[index], y[index]


def polyline(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Draws a line through the points, with a gap where y is not finite. A lone point becomes a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    path = ""
    for run in filter(None, runs):
        path += "M" + "L".join(f"{number(x)} {number(y)}" for x, y in run)
        path += "h.01" if len(run) == 1 else ""
    return tag("path", d=path, class_=class_) if path else Markup("")


def boxes(spans: Iterable[tuple[float, float]], y: float, height: float, class_: str) -> Markup:
    """Draws many bars of one kind as a single path, so that thousands of steps need only a few kilobytes."""
    down, up = number(height), number(-height)
    path = "".join(f"M{number(a)} {number(y)}h{number(b - a)}v{down}H{number(a)}v{up}" for a, b in spans)
    return tag("path", d=path, class_=class_) if path else Markup("")


def seconds_text(seconds: float) -> str:
    return format_duration(round(seconds * 1e9))


def time_axis(scale: Scale, top: float, bottom: float, per_tick: float) -> Markup:
    count = max(2, int((scale.stop - scale.start) / per_tick))
    step = time_step(scale.high - scale.low, count)
    parts = []
    for tick in multiples(step, scale.low, scale.high):
        x = scale(tick)
        parts.append(line(x, top, x, bottom, "grid"))
        parts.append(text(x, bottom + 16, time_label(tick, step), "tick", "middle"))
    return join(parts)
