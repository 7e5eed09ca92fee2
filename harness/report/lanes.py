"""Draws the ranks of a run as rows of a chart: steps, starts and exits as bars on a common time axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from harness.node.emitter import AXES
from harness.report.charts import svg
from harness.report.words import short_path
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import Process, Timeline
from harness.units import counted, format_duration

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Coordinates = Mapping[str, tuple[int, int]]
LANES_MAX = 32
FOLDED_MAX = 32  # groups with one row each
UNFOLDED_MAX = 128  # ranks in folded groups whose rows are drawn, too
BARS_MAX = 1200  # single steps with a tooltip each; more are drawn as density
STEP_WIDTH_MIN = 3.0  # px; narrower steps melt into density
BIN_WIDTH = 3.0
SHADES = 4


@dataclass(frozen=True)
class Lane:
    rank: int
    lives: Sequence[Process]  # in order of their starts
    targeted: bool  # a fault aimed at it
    group: str  # its group of ranks in the chart, such as `pp 1`; empty: the job's mesh is not known
    place: str  # in that group, such as `dp 0 tp 1`
    rows: Ints  # of its steps, in `Timeline.steps`


@dataclass(frozen=True)
class Cast:
    run: Timeline
    lanes: Sequence[Lane]
    total: int
    usual_ns: float  # median of the surviving steps; 0 without any
    rows: Ints  # of the steps of all ranks, in `Timeline.steps`
    name: str = ""  # of the group that these ranks are, such as `pp 1`; empty: all ranks
    folded: Sequence["Cast"] = ()  # groups of ranks that have one row each
    died: Sequence[int] = ()  # when a process of the group did


def choose(run: Timeline, most: int = LANES_MAX) -> Cast:
    """Chooses at most `most` ranks for a chart: first those hit by a fault, then those that died or lost the most time.
    Ranks with an equal coordinate on the outermost mesh axis stay together. A mesh group that no fault hit may get a
    single row."""
    steps = run.steps
    took = steps.end - steps.begin
    # Time in surviving steps, for each rank that did any step.
    told, group = np.unique(steps.rank, return_inverse=True)
    sums = np.bincount(group, weights=np.where(steps.survives, took, 0) / 1e9, minlength=len(told))
    useful = {int(rank): float(amount) for rank, amount in zip(told, sums, strict=True)}
    ranks = sorted(useful.keys() | {p.rank for p in run.processes})
    hit, dead = _hit(run), {p.rank for p in run.processes if died(p)}
    places = {p.rank: p.coordinates for p in run.processes if p.coordinates}
    groups = {rank: _group(places.get(rank, {})) for rank in ranks}
    struck = {groups[rank] for rank in hit & groups.keys()}
    chosen, apart = ranks, list[str]()
    if len(ranks) > most:
        apart = sorted({*groups.values()} - struck, key=_by_number) if struck - {""} else []
        worst = [rank for rank in ranks if groups[rank] not in apart]
        chosen = sorted(worst, key=lambda rank: (rank not in hit, rank not in dead, useful.get(rank, 0.0), rank))[:most]
    if any(groups.values()):
        chosen = sorted(chosen, key=lambda rank: (groups[rank] not in struck, _by_number(groups[rank]), rank))
    usual_ns = float(np.median(took[steps.survives])) if steps.survives.any() else 0.0

    def lane(rank: int) -> Lane:
        lives = sorted((p for p in run.processes if p.rank == rank), key=lambda life: life.started)
        axes = [(axis, f"{axis} {at}") for axis, (at, size) in places.get(rank, {}).items() if size > 1]
        place = " ".join(text for _, text in axes if text != groups[rank])
        return Lane(rank, lives, rank in hit, groups[rank], place, np.flatnonzero(steps.rank == rank))

    folded = []
    for name in apart[:FOLDED_MAX]:
        mine = [rank for rank in ranks if groups[rank] == name]
        within = [lane(rank) for rank in mine if len(ranks) <= UNFOLDED_MAX]
        ends = [ended(process) for process in run.processes if died(process) and process.rank in mine]
        rows = np.flatnonzero(np.isin(steps.rank, mine))
        folded.append(Cast(run, within, len(mine), usual_ns, rows, name or "elsewhere", died=ends))
    return Cast(run, [*map(lane, chosen)], len(ranks), usual_ns, np.arange(len(steps)), folded=folded)


def _hit(run: Timeline) -> set[int]:
    hit: set[int] = set()
    for target in (target for fault in run.faults for target in fault.targets):
        if target.get("rank") is not None:
            hit.add(int(target["rank"]))
        else:
            place = (target.get("node"), target.get("incarnation"))
            hit.update(p.rank for p in run.processes if (p.node, p.incarnation) == place)
    return hit


def _group(place: Coordinates) -> str:
    """Returns a rank's group, such as `pp 1`, on the outermost mesh axis, or "" if fewer than two axes are used."""
    axes = [axis for axis in AXES if place.get(axis, (0, 1))[1] > 1]
    return f"{axes[0]} {place[axes[0]][0]}" if len(axes) > 1 else ""


def _by_number(group: str) -> tuple[int, str]:
    """Returns a sort key by which `pp 2` comes before `pp 10`."""
    return len(group), group


def died(process: Process) -> bool:
    """Returns True if a process failed: its exit code means neither success nor an exit after an eviction notice."""
    return process.exit_code is not None and process.exit_code not in CLEAN_CODES


def ended(process: Process) -> int:
    return process.last_seen if process.exited is None else process.exited


def progress(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """Returns the number of steps done in each time bin between the ascending `edges`, with shape (len(edges) - 1,). A
    step that spans several bins counts in each bin by its share of time."""
    rate = 1.0 / np.maximum(end - begin, 1e-9)
    done = _ramps(begin, rate, edges) - _ramps(end, rate, edges)
    return np.asarray(np.maximum(np.diff(done), 0.0))


def _ramps(start: Floats, rate: Floats, edges: Floats) -> Floats:
    """Returns, at each time in `edges`, the sum of ramps that begin at the times `start` and rise at `rate`."""
    place = np.searchsorted(edges, start)
    slopes = np.bincount(place, weights=rate, minlength=len(edges) + 1).cumsum()[: len(edges)]
    offsets = np.bincount(place, weights=rate * start, minlength=len(edges) + 1).cumsum()[: len(edges)]
    return np.asarray(slopes * edges - offsets)


def draw_lane(cast: Cast, lane: Lane, x: svg.Scale, y: float, height: float, single: bool) -> Markup:
    parts = [_draw_life(life, x, y, height) for life in lane.lives]
    seen = _seen(cast, lane.rows, x)
    if single:
        parts += [_draw_step(cast.run, row, x, y, height) for row in seen.tolist()]
    else:
        parts += _density(cast, seen, x, y, height, cast.usual_ns)
    for life in lane.lives:
        if died(life) and x.low <= (at := ended(life)) <= x.high:
            when = format_duration(at - cast.run.begin)
            parts.append(_cross(x(at), y + height / 2, f"{_place(life)}\nexit code {life.exit_code} at {when}"))
    return svg.join(parts)


def draw_together(cast: Cast, x: svg.Scale, y: float, height: float) -> Markup:
    parts = _density(cast, _seen(cast, cast.rows, x), x, y, height, cast.usual_ns / max(cast.total, 1))
    for times in svg.near([at for at in cast.died if x.low <= at <= x.high], x):
        title = f"{cast.name}: {counted(len(times), 'process', 'processes')} died"
        first, last = (format_duration(at - cast.run.begin) for at in (times[0], times[-1]))
        title += f" from {first} to {last}" if len(times) > 1 else ""
        parts.append(_cross(x(times[0]), y + height / 2, title))
    return svg.join(parts)


def can_draw_single(cast: Cast, x: svg.Scale) -> bool:
    count = sum(len(_seen(cast, lane.rows, x)) for lane in cast.lanes)
    return not cast.name and count <= BARS_MAX and (x(x.low + cast.usual_ns) - x.start) >= STEP_WIDTH_MIN


def _seen(cast: Cast, rows: Ints, x: svg.Scale) -> Ints:
    steps = cast.run.steps
    return np.asarray(rows[(steps.end[rows] > x.low) & (steps.begin[rows] < x.high)])


def _draw_life(life: Process, x: svg.Scale, y: float, height: float) -> Markup:
    place, bands = _place(life), [("alive", life.started, ended(life), _story(life))]
    for phase, begin, end in (("startup", life.started, life.rendezvous), ("restore", life.rendezvous, life.restored)):
        if begin is not None and end is not None:
            bands.append((f"p-{phase}", begin, end, f"{phase}: {format_duration(end - begin)}"))
    return svg.join(
        svg.rect(x.clamp(begin), y, max(x.clamp(end) - x.clamp(begin), 0.8), height, class_, f"{place}\n{words}")
        for class_, begin, end, words in bands
        if end > x.low and begin < x.high
    )


def _place(life: Process) -> str:
    axes = ", ".join(f"{axis} {at} of {size}" for axis, (at, size) in life.coordinates.items())
    rank = f"Rank {life.rank} ({axes})" if axes else f"Rank {life.rank}"
    return f"{rank} on {life.node}, incarnation {life.incarnation}, pid {life.pid}"


def _story(life: Process) -> str:
    source = short_path(life.source or "an unknown place")
    state = "a state of an unknown step" if life.restored_step is None else f"step {life.restored_step}"
    fresh = not life.restored_step and (life.restored is None or life.restored_step == 0)
    start = "started from scratch" if fresh else f"restored {state} from {source}"
    if life.exit_code is None:
        return f"{start}; no exit recorded"
    return f"{start}; exit code {life.exit_code}" + (f" ({life.exit_reason})" if life.exit_reason else "")


def _cross(at: float, y: float, title: str) -> Markup:
    arm = 4.0
    cross = f"M{at - arm:.1f} {y - arm:.1f}l{2 * arm} {2 * arm}m0 {-2 * arm}l{-2 * arm} {2 * arm}"
    drawn = svg.tag("path", d=cross, class_="halo"), svg.tag("path", d=cross, class_="cross")
    return svg.tag("g", svg.tag("title", title), *drawn)


def _draw_step(run: Timeline, row: int, x: svg.Scale, y: float, height: float) -> Markup:
    steps = run.steps
    begin, end, kept = int(steps.begin[row]), int(steps.end[row]), bool(steps.survives[row])
    took, loss = format_duration(end - begin), steps.loss[row]
    title = f"Rank {steps.rank[row]}, step {steps.step[row]:,}: {took}, loss {loss:.4f}"
    width = max(x.clamp(end) - x.clamp(begin) - 0.6, 0.6)
    title += "" if kept else "\nrolled back later"
    return svg.rect(x.clamp(begin), y, width, height, "s4" if kept else "rolled", title)


def _density(cast: Cast, rows: Ints, x: svg.Scale, y: float, height: float, usual_ns: float) -> list[Markup]:
    """Shades a rank's row by its pace: dark at the usual pace or faster, paler if slower, empty at a standstill."""
    steps, bins = cast.run.steps, max(1, int((x.stop - x.start) / BIN_WIDTH))
    edges, places = np.linspace(0.0, (x.high - x.low) / 1e9, bins + 1), np.linspace(x.start, x.stop, bins + 1)
    usual = (edges[1] - edges[0]) * 1e9 / usual_ns if usual_ns else 1.0
    low, survives = int(x.low), steps.survives[rows]
    begin, end = (steps.begin[rows] - low) / 1e9, (steps.end[rows] - low) / 1e9
    kept = progress(begin[survives], end[survives], edges) / usual
    rolled = progress(begin[~survives], end[~survives], edges) / usual
    shade = np.clip(np.ceil(kept * SHADES - 0.25), 0, SHADES).astype(int)
    shade[(kept > 0.02) & (shade == 0)] = 1
    parts = [svg.boxes(_runs(shade == level, places), y, height, f"s{level}") for level in range(1, SHADES + 1)]
    return [*parts, svg.boxes(_runs(rolled > np.maximum(kept, 0.02), places), y, height, "rolled")]


def _runs(marked: Bools, places: Floats) -> list[tuple[float, float]]:
    change = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False]))))
    return [(float(places[a]), float(places[b])) for a, b in change.reshape(-1, 2)]
