"""The timeline chart (acts of every rank, and faults) and the chart of one recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from markupsafe import Markup

from harness.report.charts import lanes as ranks
from harness.report.charts import svg
from harness.report.words import short
from harness.units import counted

TITLE_GAP = 8.0
CAPTION = 15.0  # px above a lane for the names of its nodes
PLACED_MAX = 17  # characters of a label that names a place in the mesh
GROUP = 16.0  # px above the first lane of a group for its name
FOLDED = 5.0  # px above the row of a folded group
CHARACTER = 6.6  # px; a cautious width of one letter at the chart's font size
BOLD = 8.0  # px; of a bold one
LABEL_MAX = 40  # characters of a fault's label; the mark tells all of it


@dataclass(frozen=True)
class Phase:
    """A phase of the whole job in [begin, end), in seconds since the start of the run."""

    name: str  # its colour: `p-<name>` in the style sheet
    label: str
    begin: float
    end: float
    meaning: str = ""


@dataclass(frozen=True)
class Fault:
    """One injected fault, in seconds since the start of the run. `story`: its victim and its effect."""

    id: str
    kind: str
    injected: float
    ended: float
    story: str


@dataclass(frozen=True)
class CheckpointMark:
    at: float  # seconds since the start of the run
    step: object
    result: Literal["committed", "failed"]


@dataclass(frozen=True)
class Recovery:
    """One recovery, in seconds since the start of the run; its phases leave no gap between `stop` and `end`."""

    stop: float
    end: float
    first: float | None
    regained: float | None
    faults: Sequence[str]
    phases: Sequence[Phase]

    def seconds(self) -> dict[str, float]:
        """Returns the time of each phase by its label, in the order in which they first came."""
        sums: dict[str, float] = {}
        for phase in self.phases:
            sums[phase.label] = sums.get(phase.label, 0.0) + phase.end - phase.begin
        return sums


@dataclass(frozen=True)
class Chronicle:
    """A whole run of `duration` seconds."""

    duration: float
    phases: Sequence[Phase]
    faults: Sequence[Fault]
    checkpoints: Sequence[CheckpointMark]
    recoveries: Sequence[Recovery]


@dataclass(frozen=True)
class Layout:
    """Measures of one variant of a chart. Narrow ones are for phones: short labels, tighter rows."""

    width: float
    label: float  # width of the column of row labels
    lane: float  # height of a rank's bar
    pitch: float  # distance from lane to lane
    narrow: bool

    def name(self, long: str, short: str) -> str:
        return short if self.narrow else long

    def scale(self, low: float, high: float) -> svg.Scale:
        return svg.Scale(low, high, self.label, self.width - 16)


def layout(narrow: bool, lanes: int) -> Layout:
    height, pitch = (16.0, 36.0) if lanes <= 8 else (12.0, 17.0) if lanes <= 16 else (9.0, 13.0)
    return Layout(358.0 if narrow else 1080.0, 46.0 if narrow else 120.0, height, pitch, narrow)


def timeline_chart(run: Chronicle, cast: ranks.Cast, narrow: bool = False) -> Markup:
    """The whole run: phases of the job, faults, checkpoints, and a lane for each rank."""
    form = layout(narrow, len(cast.lanes) + len(cast.folded))
    x = form.scale(0.0, max(run.duration, 1e-6))
    top = 4.0
    parts = [_row_label(form, "Job", top + 12), _job(run.phases, x, top, 17.0)]
    top += 26
    faults, top = _faults(run, form, x, top)
    if run.checkpoints:
        parts.append(_row_label(form, form.name("Checkpoints", "Ckpt"), top + 11))
        parts.append(_checkpoints(run.checkpoints, x, top + 7))
        top += 20
    lanes_top = top + 2
    drawn, bottom = _lanes(cast, form, x, lanes_top)
    parts += drawn
    spans = [(x(recovery.stop), x(recovery.end)) for recovery in run.recoveries]
    over = lanes_top - 2
    shade = [svg.rect(left, over, max(right - left, 1), bottom - over, "episode") for left, right in spans]
    marks = [_injection(fault, x, 30.0, bottom) for fault in run.faults]
    axis = svg.time_axis(x, 0.0, bottom, per_tick=70 if narrow else 110)
    label = f"Timeline of {counted(cast.total, 'rank')} over {svg.seconds_text(x.high)}"
    if run.recoveries:
        label += f", {counted(len(run.recoveries), 'recovery', 'recoveries')}"
    return svg.picture(form.width, bottom + 22, label, [*shade, axis, *parts, *marks, *faults])


def recovery_chart(run: Chronicle, recovery: Recovery, cast: ranks.Cast, narrow: bool = False) -> Markup:
    """Draws one recovery: a row for each phase with its seconds, above the lanes of the ranks, on the same axis. Time
    counts from the moment progress stopped."""
    form = replace(layout(narrow, len(cast.lanes)), label=112.0 if narrow else 140.0, lane=12.0, pitch=17.0)
    stop, end = recovery.stop, recovery.end
    around = max((end - stop) * 0.06, 1e-3)
    low = max(stop - around, 0.0)
    x = form.scale(low, max(min(end + around, run.duration), low + around))
    sums = recovery.seconds()
    parts, top = [_moments(run, recovery, x)], 20.0
    for label, total_s in sums.items():
        parts.append(_phase_row([p for p in recovery.phases if p.label == label], total_s, form, x, top))
        top += 22
    lanes_top = top + 8
    drawn, bottom = _lanes(cast, form, x, lanes_top)
    marks = [_injection(fault, x, 16.0, bottom) for fault in run.faults]
    marks += [
        svg.line(x(at), 16.0, x(at), bottom, "moment")
        for at in (recovery.stop, recovery.first, recovery.regained)
        if at is not None
    ]
    axis = svg.time_axis(x, 16.0, bottom, origin_s=stop, per_tick=60 if narrow else 100)
    took = "; ".join(f"{label} {svg.seconds_text(total_s)}" for label, total_s in sums.items())
    return svg.picture(form.width, bottom + 22, f"Phases of the recovery: {took}", [axis, *parts, *drawn, *marks])


def _moments(run: Chronicle, recovery: Recovery, x: svg.Scale) -> Markup:
    """Words above the marked moments, from the right to the left; one that would overlap is left out."""
    named = [("recovered", recovery.regained, "tick"), ("steps again", recovery.first, "tick")]
    mine = set(recovery.faults)
    named += [(short(f.id, 24), f.injected, "fault-label") for f in run.faults if f.id in mine]
    moments = [(name, x(at), class_) for name, at, class_ in named if at is not None]
    marks = [moment for moment in moments if x.start <= moment[1] <= x.stop]
    parts, free = [], x.stop + 16
    for words, at, class_ in _together(sorted(marks, key=lambda mark: -mark[1])):
        half = len(words) * (BOLD if class_ == "fault-label" else CHARACTER) / 2
        centre = min(at, free - half)
        if centre + half >= at - 2 and centre - half > 0:
            parts.append(svg.text(centre, 11, words, class_, "middle"))
            free = centre - half - 8
    return svg.join(parts)


def _together(marks: Sequence[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Marks of one kind at the same place share one label: `steps again, recovered`."""
    merged: list[tuple[str, float, str]] = []
    for words, at, class_ in marks:
        if merged and merged[-1][2] == class_ and merged[-1][1] - at < 2:
            merged[-1] = (f"{words}, {merged[-1][0]}", merged[-1][1], class_)
        else:
            merged.append((words, at, class_))
    return merged


def _row_label(form: Layout, words: str, y: float) -> Markup:
    return svg.text(form.label - TITLE_GAP, y, words, "label", "end")


def _job(phases: Sequence[Phase], x: svg.Scale, y: float, height: float) -> Markup:
    """Draws the phases of the whole job, with their names if there is room."""
    parts = []
    for phase in phases:
        took = svg.seconds_text(phase.end - phase.begin)
        width = max(x.clamp(phase.end) - x.clamp(phase.begin), 0.7)
        parts.append(svg.rect(x.clamp(phase.begin), y, width, height, f"p-{phase.name}", f"{phase.label}: {took}"))
        if len(phase.label) * BOLD + 6 < width:
            parts.append(svg.text(x(phase.begin) + 5, y + height - 5, phase.label, f"on on-{phase.name}"))
    return svg.join(parts)


def _faults(run: Chronicle, form: Layout, x: svg.Scale, top: float) -> tuple[list[Markup], float]:
    """A bar for each fault from injection to its end, labelled; bars that would collide go one row down."""
    if not run.faults:
        return [], top
    parts = [_row_label(form, form.name("Faults", "Fault"), top + 11)]
    free: list[float] = []
    for fault in sorted(run.faults, key=lambda f: f.injected)[:60]:
        left, right = x.clamp(fault.injected), x.clamp(fault.ended)
        words = fault.id if form.narrow or fault.id == fault.kind else f"{fault.id}: {fault.kind}"
        most = max(int(max(x.stop - right, left - x.start) / BOLD) - 1, 3)
        words = short(words, min(most, LABEL_MAX))
        needs = len(words) * BOLD + 6
        flip = right + needs > x.stop
        begin, end = (left - needs, right) if flip else (left, right + needs)
        row = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[row : row + 1] = [end]
        y = top + 16 * row
        parts.append(svg.rect(left, y + 3, max(right - left, 3), 9, "fault", fault.story))
        at, anchor = (left - 5, "end") if flip else (max(right, left + 3) + 5, "start")
        parts.append(svg.text(at, y + 12, words, "fault-label", anchor))
    return parts, top + 16 * len(free) + 6


def _injection(fault: Fault, x: svg.Scale, top: float, bottom: float) -> Markup:
    at = fault.injected
    return svg.line(x(at), top, x(at), bottom, "injected") if x.low <= at <= x.high else Markup("")


def _checkpoints(checkpoints: Sequence[CheckpointMark], x: svg.Scale, y: float) -> Markup:
    """A diamond for each committed checkpoint, a cross for a failed one; neighbours share one mark."""
    kinds: list[tuple[str, Callable[[float, float], str]]] = [
        ("committed", lambda at, y: f"M{at:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"),
        ("failed", lambda at, y: f"M{at - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"),
    ]
    parts = []
    for kind, shape in kinds:
        for group in svg.near([one for one in checkpoints if one.result == kind], lambda one: x(one.at)):
            at = x(group[0].at)
            steps = ", ".join(dict.fromkeys(str(one.step) for one in group[:12]))
            many = f" and {len(group) - 12} more" if len(group) > 12 else ""
            title = svg.tag("title", f"Checkpoint {kind}: step {steps}{many}")
            parts.append(svg.tag("g", title, svg.tag("path", d=shape(at, y), class_=f"checkpoint-{kind}")))
    return svg.join(parts)


def _lanes(cast: ranks.Cast, form: Layout, x: svg.Scale, top: float) -> tuple[list[Markup], float]:
    single = ranks.can_draw_single(cast, x)
    parts, y = [], top
    if cast.total > len(cast.lanes):
        parts.append(_row_label(form, form.name(f"All {cast.total:,} ranks", "All"), y + form.lane - 2))
        parts.append(ranks.draw_together(cast, x, y, form.lane))
        y += form.pitch + 4
    captions, group = form.pitch - form.lane > CAPTION, ""
    for lane in cast.lanes:
        if lane.group != group:
            group = lane.group
            parts.append(svg.text(form.label - TITLE_GAP, y + GROUP - 4, group, "label group", "end"))
            y += GROUP
        if captions:
            parts.append(_captions(lane, x, y + CAPTION - 4))
            y += CAPTION
        short = f"r{lane.rank}"
        placed = f"{lane.place} · {short}" if lane.group else ""
        label = form.name(placed if 0 < len(placed) <= PLACED_MAX else f"Rank {lane.rank}", short)
        class_ = "label hit" if lane.targeted else "label"
        middle = y + form.lane / 2 + 4
        parts.append(svg.text(form.label - TITLE_GAP, middle, label, class_, "end"))
        parts.append(ranks.draw_lane(lane, x, y, form.lane, cast.usual_s, single))
        y += form.pitch - (CAPTION if captions else 0)
    for folded in cast.folded:
        y += FOLDED
        long = f"{folded.name} · {counted(folded.total, 'rank')}"
        label = form.name(long if len(long) <= PLACED_MAX else folded.name, folded.name)
        parts.append(svg.text(form.label - TITLE_GAP, y + form.lane / 2 + 4, label, "label", "end"))
        parts.append(ranks.draw_together(folded, x, y, form.lane))
        y += form.pitch
    return parts, max(y, top + form.pitch if cast.lanes else top) + 2


def _captions(lane: ranks.Lane, x: svg.Scale, y: float) -> Markup:
    """Writes where each process of a rank ran, above the start of its bar, if there is room."""
    parts = []
    for i, life in enumerate(lane.lives):
        until = lane.lives[i + 1].started if i + 1 < len(lane.lives) else x.high
        room = x.clamp(until) - x.clamp(life.started)
        again = f", incarnation {life.incarnation}" if life.incarnation > 1 else ""
        name = next((n for n in (life.node + again, life.node) if len(n) * 6 < room), None)
        if name and x.low <= life.started <= x.high:
            parts.append(svg.text(x(life.started), y, name, "caption"))
    return svg.join(parts)


def _phase_row(phases: Sequence[Phase], total_s: float, form: Layout, x: svg.Scale, y: float) -> Markup:
    """Draws all phases of one kind: name on the left, bars in the middle, their seconds beside the last bar."""
    took, kind = svg.seconds_text(total_s), phases[0]
    parts = [svg.text(form.label - TITLE_GAP, y + 12, kind.label, "label", "end")]
    right = x.start
    for phase in phases:
        width = max(x.clamp(phase.end) - x.clamp(phase.begin), 1.5)
        title = f"{phase.label}: {svg.seconds_text(phase.end - phase.begin)}\n{phase.meaning}"
        parts.append(svg.rect(x.clamp(phase.begin), y + 1, width, 14, f"p-{phase.name}", title))
        right = x.clamp(phase.begin) + width
    needs = len(took) * BOLD + 8
    flip = right + needs > x.stop
    left = x.clamp(kind.begin)
    inside = flip and right - x.clamp(phases[-1].begin) > needs
    at = right + 6 if not flip else right - 6 if inside else left - 6
    class_ = f"on on-{kind.name}" if inside else "seconds"
    parts.append(svg.text(at, y + 12, took, class_, "end" if flip else "start"))
    return svg.join(parts)
