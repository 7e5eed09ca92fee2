"""The acts of each rank: steps, starts and exits as bars on a shared time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from harness.report.charts import svg
from harness.units import counted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
BARS_MAX = 1200  # single steps with a tooltip each; more are drawn as density
STEP_WIDTH_MIN = 3.0  # px; narrower steps melt into density
BIN_WIDTH = 3.0
SHADES = 4


@dataclass(frozen=True)
class WorkerBar:
    """One process of a rank. Times are in seconds since the start of the run."""

    place: str  # `Rank 1 on node-0, incarnation 2, pid 4711`
    story: str  # where it started from and how it ended
    node: str
    incarnation: int
    started: float
    rendezvous: float | None
    restored: float | None
    ended: float  # exit, or the last sign of life
    exit_code: int | None
    died: bool  # it ended, and neither because the work was done nor after an orderly drain


@dataclass(frozen=True)
class Lane:
    """One rank's life. Times are in seconds since the start of the run; all columns have shape (steps,)."""

    rank: int
    lives: Sequence[WorkerBar]
    targeted: bool  # a fault aimed at it
    group: str  # its group of ranks in the chart, such as `pp 1`; empty: the job's mesh is not known
    place: str  # in that group, such as `dp 0 tp 1`
    begin: Floats  # begin of each step, ascending
    end: Floats
    step: Ints
    loss: Floats
    survives: Bools

    def within(self, low: float, high: float) -> Bools:
        return (self.end > low) & (self.begin < high)


@dataclass(frozen=True)
class AllSteps:
    """The steps of all ranks, in ns from `origin`; all columns have shape (steps,)."""

    begin: Ints
    end: Ints
    survives: Bools
    origin: int


@dataclass(frozen=True)
class Cast:
    """The ranks that a chart shows, the number of all ranks, and the usual time of their steps."""

    lanes: Sequence[Lane]
    total: int
    usual_s: float  # median of the surviving steps; 0 without any
    everybody: AllSteps
    name: str = ""  # of the group that these ranks are, such as `pp 1`; empty: all ranks
    folded: Sequence[Cast] = ()  # groups of ranks that have one row each
    died: Sequence[float] = ()  # when a process did, in seconds since the start of the run


def progress(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """Returns how many steps (in parts of a step) were done in each bin; shape (len(edges) - 1,), `edges` ascending.

    A step counts evenly over its duration, so a bin is exact however it cuts the steps: the sum over all
    steps of a clipped ramp, taken at the edges. No sorting, so ten million steps take a second.
    """
    rate = 1.0 / np.maximum(end - begin, 1e-9)
    done = _ramps(begin, rate, edges) - _ramps(end, rate, edges)
    return np.asarray(np.maximum(np.diff(done), 0.0))


def _ramps(start: Floats, rate: Floats, edges: Floats) -> Floats:
    """Returns Σ rate·(edge − start) over the starts up to each edge."""
    place = np.searchsorted(edges, start)
    slopes = np.bincount(place, weights=rate, minlength=len(edges) + 1).cumsum()[: len(edges)]
    offsets = np.bincount(place, weights=rate * start, minlength=len(edges) + 1).cumsum()[: len(edges)]
    return np.asarray(slopes * edges - offsets)


def draw_lane(lane: Lane, x: svg.Scale, y: float, height: float, usual_s: float, single: bool) -> Markup:
    """Bars of one rank: start-up, restore, each step (or its density), and how its processes ended."""
    parts = [_draw_life(life, x, y, height) for life in lane.lives]
    seen = lane.within(x.low, x.high)
    if single:
        parts += _single_steps(lane, seen, x, y, height)
    else:
        parts += _density(lane.begin[seen], lane.end[seen], lane.survives[seen], x, y, height, usual_s)
    parts += [_exit(life, x, y + height / 2) for life in lane.lives if life.died]
    return svg.join(parts)


def draw_together(cast: Cast, x: svg.Scale, y: float, height: float) -> Markup:
    """Draws one lane for all ranks together: full shade if every rank does its usual steps; deaths of a group."""
    steps = cast.everybody
    low, high = steps.origin + int(x.low * 1e9), steps.origin + int(x.high * 1e9)
    seen = np.flatnonzero((steps.end > low) & (steps.begin < high))
    begin, end = (steps.begin[seen] - steps.origin) / 1e9, (steps.end[seen] - steps.origin) / 1e9
    parts = _density(begin, end, steps.survives[seen], x, y, height, cast.usual_s / max(cast.total, 1))
    died = sorted(at for at in cast.died if x.low <= at <= x.high) if cast.name else []
    for times in svg.near(died, x):
        title = f"{cast.name}: {counted(len(times), 'process', 'processes')} died"
        title += f" from {svg.seconds_text(times[0])} to {svg.seconds_text(times[-1])}" if len(times) > 1 else ""
        parts.append(_cross(x(times[0]), y + height / 2, title))
    return svg.join(parts)


def can_draw_single(cast: Cast, x: svg.Scale) -> bool:
    count = sum(int(lane.within(x.low, x.high).sum()) for lane in cast.lanes)
    return not cast.name and count <= BARS_MAX and (x(x.low + cast.usual_s) - x.start) >= STEP_WIDTH_MIN


def _draw_life(life: WorkerBar, x: svg.Scale, y: float, height: float) -> Markup:
    """The process as a pale band with its start-up phases in it."""
    parts = [_span(x, life.started, life.ended, y, height, "alive", f"{life.place}\n{life.story}")]
    marks = [("startup", life.started, life.rendezvous), ("restore", life.rendezvous, life.restored)]
    for phase, begin, end in marks:
        if begin is not None and end is not None:
            title = f"{life.place}\n{phase}: {svg.seconds_text(end - begin)}"
            parts.append(_span(x, begin, end, y, height, f"p-{phase}", title))
    return svg.join(parts)


def _span(x: svg.Scale, begin: float, end: float, y: float, height: float, class_: str, title: str) -> Markup:
    if end <= x.low or begin >= x.high:
        return Markup("")
    left = x.clamp(begin)
    return svg.rect(left, y, max(x.clamp(end) - left, 0.8), height, class_, title)


def _exit(life: WorkerBar, x: svg.Scale, y: float) -> Markup:
    if not x.low <= life.ended <= x.high:
        return Markup("")
    return _cross(x(life.ended), y, f"{life.place}\nexit code {life.exit_code} at {svg.seconds_text(life.ended)}")


def _cross(at: float, y: float, title: str) -> Markup:
    arm = 4.0
    cross = f"M{at - arm:.1f} {y - arm:.1f}l{2 * arm} {2 * arm}m0 {-2 * arm}l{-2 * arm} {2 * arm}"
    drawn = svg.tag("path", d=cross, class_="halo"), svg.tag("path", d=cross, class_="cross")
    return svg.tag("g", svg.tag("title", title), *drawn)


def _single_steps(lane: Lane, seen: Bools, x: svg.Scale, y: float, height: float) -> list[Markup]:
    parts = []
    for i in np.flatnonzero(seen):
        begin, end = float(lane.begin[i]), float(lane.end[i])
        kept = bool(lane.survives[i])
        left = x.clamp(begin)
        title = f"Rank {lane.rank}, step {lane.step[i]:,}: {svg.seconds_text(end - begin)}, loss {lane.loss[i]:.4f}"
        title += "" if kept else "\nrolled back later"
        width = max(x.clamp(end) - left - 0.6, 0.6)
        parts.append(svg.rect(left, y, width, height, "s4" if kept else "rolled", title))
    return parts


def _density(
    begin: Floats, end: Floats, survives: Bools, x: svg.Scale, y: float, height: float, usual_s: float
) -> list[Markup]:
    """Shades by pace: the darkest is the usual pace or faster, paler is slower, nothing is standstill."""
    bins = max(1, int((x.stop - x.start) / BIN_WIDTH))
    edges = np.linspace(x.low, x.high, bins + 1)
    usual = (edges[1] - edges[0]) / usual_s if usual_s else 1.0
    kept = progress(begin[survives], end[survives], edges) / usual
    rolled = progress(begin[~survives], end[~survives], edges) / usual
    shade = np.clip(np.ceil(kept * SHADES - 0.25), 0, SHADES).astype(int)
    shade[(kept > 0.02) & (shade == 0)] = 1
    parts = [svg.boxes(_runs(shade == level, edges, x), y, height, f"s{level}") for level in range(1, SHADES + 1)]
    return [*parts, svg.boxes(_runs(rolled > np.maximum(kept, 0.02), edges, x), y, height, "rolled")]


def _runs(marked: Bools, edges: Floats, x: svg.Scale) -> list[tuple[float, float]]:
    """Neighbouring marked bins as single bars, in pixels."""
    change = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False]))))
    return [(x(float(edges[a])), x(float(edges[b]))) for a, b in change.reshape(-1, 2)]
