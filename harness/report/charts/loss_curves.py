"""Draws the losses of a run and of its fault-free run, their difference, and the duration of each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from harness.report.charts import svg
from harness.units import counted

Floats = npt.NDArray[np.float64]
LOSS_MAX = 1e300  # what is larger is drawn beyond the panel
STRUCK_MAX = 60  # faults
LOGARITHMIC = ", log scale"
DECADES = (-307, 308)  # of the numbers that a float holds at its full precision


@dataclass(frozen=True)
class Panel:
    x: svg.Scale
    y: svg.Scale  # scale of the values, or of their logarithms
    logarithmic: bool = False

    def points(self, steps: Floats, values: Floats) -> list[tuple[float, float]]:
        steps, values = svg.thin(steps, values, max(50, int(self.x.stop - self.x.start) // 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.log10(values) if self.logarithmic else values
        heights = (self.y(float(v)) if math.isfinite(v) else math.nan for v in levels)
        return [(self.x(float(s)), height) for s, height in zip(steps, heights, strict=True)]


@dataclass(frozen=True)
class Series:
    step: Floats
    loss: Floats
    took_s: Floats  # by the slowest rank


@dataclass(frozen=True)
class Curves:
    """The data of the charts of loss and step time. `apart` holds step numbers and |loss − fault-free loss|; this
    difference is infinite if one of the two losses is NaN."""

    ours: Series
    fault_free: Series | None
    apart: tuple[Floats, Floats] | None
    last_step: int  # last step ever done, also if it was rolled back later
    resumes: Sequence[int] = ()  # steps from which the run went on after a restore, ascending
    rolled_back: Sequence[tuple[Floats, Floats]] = ()  # by process: steps that a restore undid, and their losses
    struck: Sequence[tuple[str, float]] = ()  # each fault, and the step that was under way when it acted


def loss_chart(curves: Curves, narrow: bool = False, what: str = "Loss") -> Markup | None:
    """Draws losses (or the figure named `what`), and below them their differences to the fault-free run. Returns `None`
    if no step was done."""
    ours, fault_free = curves.ours, curves.fault_free
    if not len(ours.step):
        return None
    x = _step_scale(curves, narrow)
    upper = _loss_panel(curves, x, 14.0, 210.0 if not narrow else 180.0)
    bottom = upper.y.start
    title = what + LOGARITHMIC * upper.logarithmic
    parts = [_frame(upper, title), _resumes(curves, x, 14.0, bottom), _rolled_back(curves, upper)]
    if fault_free:
        parts.append(svg.polyline(upper.points(fault_free.step, fault_free.loss), "fault-free"))
    parts += [svg.polyline(upper.points(ours.step, ours.loss), "run"), _not_finite(upper, ours)]
    parts.append(_struck(curves, x, 14.0, bottom))
    if curves.apart:
        drawn, bottom = _difference(curves, *curves.apart, x, bottom + 40)
        parts += drawn
    parts.append(_step_axis(x, bottom))
    label = f"{what} of {counted(len(ours.step), 'step')}" + (" against the fault-free run" if fault_free else "")
    return svg.picture(x.stop + 26, bottom + 22, label, parts)


def step_time_chart(curves: Curves, narrow: bool = False) -> Markup | None:
    ours, fault_free = curves.ours, curves.fault_free
    everything = np.concatenate([ours.took_s, fault_free.took_s]) if fault_free else ours.took_s
    everything = everything[everything > 0]
    if not (ours.took_s > 0).any():
        return None
    x = _step_scale(curves, narrow)
    low, high = math.log10(everything.min()), math.log10(everything.max())
    room = max((high - low) * 0.1, 0.1)
    panel = Panel(x, svg.Scale(low - room, high + room, 150.0, 6.0), logarithmic=True)
    parts = [_frame(panel, "", svg.seconds_text), _resumes(curves, x, 6.0, 150.0)]
    if fault_free:
        parts.append(svg.polyline(panel.points(fault_free.step, fault_free.took_s), "fault-free"))
    parts += [svg.polyline(panel.points(ours.step, ours.took_s), "run"), _struck(curves, x, 6.0, 150.0)]
    parts.append(_step_axis(x, 150.0))
    return svg.picture(x.stop + 26, 172, f"Time of {counted(len(ours.step), 'step')}", parts)


def _step_scale(curves: Curves, narrow: bool) -> svg.Scale:
    known = [each.step for each in (curves.ours, curves.fault_free) if each] + [step for step, _ in curves.rolled_back]
    drawn = [steps for steps in known if len(steps)]
    apart = int(np.diff(drawn[0]).min(initial=drawn[0][0])) if drawn else 0
    lowest = max(0, min((int(steps[0]) for steps in drawn), default=0) - max(apart, 1))
    highest = max(curves.last_step, lowest + 1, *(int(steps[-1]) for steps in drawn))
    return svg.Scale(float(lowest), float(highest), 46.0 if narrow else 64.0, 334.0 if narrow else 1054.0)


def _loss_panel(curves: Curves, x: svg.Scale, top: float, bottom: float) -> Panel:
    reference = curves.fault_free.loss if curves.fault_free else np.empty(0)
    everything = np.concatenate([curves.ours.loss, *(loss for _, loss in curves.rolled_back), reference])
    finite = np.clip(everything[np.isfinite(everything)], -LOSS_MAX, LOSS_MAX)
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    logarithmic = low > 0 and high / low > 50
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
    room = (high - low) * 0.06 or max(abs(high) * 0.1, 0.1)
    return Panel(x, svg.Scale(low - room, high + room, bottom, top), logarithmic)


def _frame(panel: Panel, title: str, words: object = None) -> Markup:
    parts = [svg.text(panel.x.start, panel.y.stop - 3, title, "panel-title")]
    for value in _value_ticks(panel):
        y = panel.y(math.log10(value) if panel.logarithmic else value)
        shown = words(value) if callable(words) else _power(value)
        parts.append(svg.line(panel.x.start, y, panel.x.stop, y, "grid"))
        parts.append(svg.text(panel.x.start - 6, y + 4, shown, "tick", "end"))
    return svg.join(parts)


def _power(value: float) -> str:
    if value <= 0 or 1e-3 < value < 1e5:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1" else f"{digits}·{power}"


def _value_ticks(panel: Panel) -> list[float]:
    low, high = panel.y.low, panel.y.high
    if not panel.logarithmic:
        return svg.round_ticks(low, high, 5)
    decades = range(max(math.floor(low), DECADES[0]), min(math.ceil(high), DECADES[1]) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= math.log10(f * 10.0**d) <= high]
        if len(ticks) >= 3:
            break
    every = max(1, len(ticks) // 6)
    return ticks[::every]


def _step_axis(x: svg.Scale, bottom: float) -> Markup:
    ticks = svg.round_ticks(x.low, x.high, max(2, int((x.stop - x.start) / 90)))
    parts = [svg.line(x.start, bottom, x.stop, bottom, "axis")]
    for tick in (t for t in ticks if t == int(t) and t > x.low):
        parts.append(svg.text(x(tick), bottom + 16, f"{tick:,.0f}", "tick", "middle"))
    parts.append(svg.text(x.start - 6, bottom + 16, "step", "tick", "end"))
    return svg.join(parts)


def _resumes(curves: Curves, x: svg.Scale, top: float, bottom: float) -> Markup:
    return svg.join(
        svg.tag(
            "g", svg.tag("title", f"Resumed after step {step:,}"), svg.line(x(step), top, x(step), bottom, "resume")
        )
        for step in curves.resumes[:200]
    )


def _struck(curves: Curves, x: svg.Scale, top: float, bottom: float) -> Markup:
    titled = ((svg.tag("title", f"{name} struck in step {at:,.0f}"), x(at)) for name, at in curves.struck[:STRUCK_MAX])
    return svg.join(svg.tag("g", title, svg.line(at, top, at, bottom, "injected")) for title, at in titled)


def _rolled_back(curves: Curves, panel: Panel) -> Markup:
    parts = []
    for step, loss in curves.rolled_back:
        first, last = int(step.min()), int(step.max())
        left, right = panel.x(first - 1), panel.x(last)
        top, height = panel.y.stop, panel.y.start - panel.y.stop
        title = f"Steps {first:,} to {last:,} were done and rolled back"
        parts.append(svg.rect(left, top, max(right - left, 1.5), height, "rolled-band", title))
        parts.append(svg.polyline(panel.points(step, loss), "rolled-line"))
    return svg.join(parts)


def _not_finite(panel: Panel, curve: Series) -> Markup:
    steps, bad = curve.step, np.flatnonzero(~np.isfinite(curve.loss))
    if not len(bad):
        return Markup("")
    drawn, y = steps[bad[:: max(1, len(bad) // 200)]], panel.y.stop + 2
    path = "".join(f"M{panel.x(float(step)) - 3:.1f} {y:.1f}l6 6m0 -6l-6 6" for step in drawn)
    title = svg.tag("title", f"{counted(len(bad), 'step')} without a finite loss, first at step {steps[bad[0]]:,.0f}")
    return svg.tag("g", title, svg.tag("path", d=path, class_="cross"))


def _difference(curves: Curves, steps: Floats, apart: Floats, x: svg.Scale, top: float) -> tuple[list[Markup], float]:
    if not len(steps) or not apart.any():
        words = f"0 at each of {counted(len(steps), 'step')}" if len(steps) else "no step in common"
        title = svg.text(x.start, top - 3, "Difference to the fault-free run", "panel-title")
        parts = [title, svg.text(x.start - 6, top + 24, "0", "tick", "end")]
        if len(steps):
            parts.append(svg.line(x(steps[0]), top + 20, x(steps[-1]), top + 20, "run"))
        return [*parts, svg.text(x.stop, top + 12, words, "tick", "end"), _resumes(curves, x, top, top + 28)], top + 28
    zero, bottom = top + 112, top + 122
    sized = apart[(apart > 0) & np.isfinite(apart)]
    low, high = (math.log10(sized.min()), math.log10(sized.max())) if len(sized) else (-1.0, 0.0)
    room = max((high - low) * 0.1, 0.3)
    panel = Panel(x, svg.Scale(low - room, high + room, zero - 16, top), logarithmic=True)
    finite = np.where(np.isfinite(apart), apart, 10.0 ** min(high + room, DECADES[1]))
    thinned = svg.thin(steps, finite, int(x.stop - x.start) // 2)
    points = [(x(float(s)), panel.y(math.log10(v)) if v > 0 else zero) for s, v in zip(*thinned, strict=True)]
    return [
        svg.text(x.start, top - 3, f"Largest difference of any rank{LOGARITHMIC}", "panel-title"),
        _frame(Panel(x, panel.y, True), ""),
        svg.text(x.start - 6, zero + 4, "0", "tick", "end"),
        svg.line(x.start, zero, x.stop, zero, "grid"),
        _resumes(curves, x, top, bottom),
        svg.polyline(points, "difference"),
    ], bottom
