"""Draws the timeline chart (faults, and what each rank did) and the chart of one recovery."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup

from harness.report import lanes as ranks
from harness.report.charts import svg
from harness.report.view import target_text
from harness.report.words import PHASE_MEANING, quantity, seconds, short, words
from harness.timeline.lookups import grouped
from harness.timeline.sorted_events import acted_at
from harness.timeline.timeline import Episode, FaultRecord, Process, Segment, Timeline
from harness.units import counted, format_duration

TITLE_GAP = 8.0
CAPTION = 15.0  # px above a lane for the names of its nodes
PLACED_MAX = 17  # characters of a label that names a place in the mesh
GROUP = 16.0  # px above the first lane of a group for its name
FOLDED = 5.0  # px above the row of a folded group
CHARACTER = 6.6  # px; a cautious width of one letter at the chart's font size
BOLD = 8.0  # px; of a bold one
LABEL_MAX = 40  # characters of a fault's label; the mark tells all of it
STANDSTILL = "standstill"  # no phase of the log: a part of `running` in which no step came to its end
STANDSTILL_TIMES = 5  # a step that takes so many usual ones, and at least so long, is one
STANDSTILL_NS_MIN = 2 * 10**9
SHAPES: dict[str, Callable[[float, float], str]] = {  # of the end of a checkpoint
    "committed": lambda at, y: f"M{at:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
    "failed": lambda at, y: f"M{at - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8",
}


@dataclass(frozen=True)
class Layout:
    width: float
    label: float  # width of the column of row labels
    lane: float  # height of a rank's bar
    pitch: float  # distance from lane to lane
    narrow: bool

    def name(self, long: str, short: str) -> str:
        return short if self.narrow else long

    def scale(self, low_ns: int, high_ns: int) -> svg.Scale:
        return svg.Scale(low_ns, high_ns, self.label, self.width - 16)


def layout(narrow: bool, lanes: int) -> Layout:
    height, pitch = (16.0, 36.0) if lanes <= 8 else (12.0, 17.0) if lanes <= 16 else (9.0, 13.0)
    return Layout(358.0 if narrow else 1080.0, 46.0 if narrow else 120.0, height, pitch, narrow)


def timeline_chart(cast: ranks.Cast, narrow: bool = False) -> Markup:
    run = cast.run
    form = layout(narrow, len(cast.lanes) + len(cast.folded))
    x = form.scale(run.begin, max(run.end, run.begin + 1000))
    top = 4.0
    parts = [_row_label(form, "Job", top + 12), _job(job_phases(run), x, top, 17.0)]
    top += 26
    faults, top = _faults(run, form, x, top)
    if saves := finished_saves(run):
        parts.append(_row_label(form, form.name("Checkpoints", "Ckpt"), top + 11))
        parts.append(_checkpoints(saves, x, top + 7))
        top += 20
    lanes_top = top + 2
    drawn, bottom = _lanes(cast, form, x, lanes_top)
    parts += drawn
    spans = [(x(episode.t_stop), x(episode.end)) for episode in run.episodes]
    over = lanes_top - 2
    shade = [svg.rect(left, over, max(right - left, 1), bottom - over, "episode") for left, right in spans]
    marks = [_injection(fault, x, 30.0, bottom) for fault in struck(run)]
    axis = svg.time_axis(_in_seconds(x, run.begin), 0.0, bottom, per_tick=70 if narrow else 110)
    label = f"Timeline of {counted(cast.total, 'rank')} over {format_duration(round(x.high - x.low))}"
    if run.episodes:
        label += f", {counted(len(run.episodes), 'recovery', 'recoveries')}"
    return svg.picture(form.width, bottom + 22, label, [*shade, axis, *parts, *marks, *faults])


def recovery_chart(episode: Episode, cast: ranks.Cast, narrow: bool = False) -> Markup:
    """Draws one recovery: a row for each phase, above a row for each rank. The job stopped at time 0."""
    run = cast.run
    form = replace(layout(narrow, len(cast.lanes)), label=112.0 if narrow else 140.0, lane=12.0, pitch=17.0)
    stop, end = episode.t_stop, episode.end
    around = max((end - stop) * 6 // 100, 10**6)
    low = max(stop - around, run.begin)
    x = form.scale(low, max(min(end + around, run.end), low + around))
    phases = grouped((segment.phase, segment) for segment in episode.segments)
    took = {phase: sum(each.end - each.begin for each in segments) for phase, segments in phases.items()}
    parts, top = [_moments(run, episode, x)], 20.0
    for phase, segments in phases.items():
        parts.append(_phase_row(segments, took[phase], form, x, top))
        top += 22
    drawn, bottom = _lanes(cast, form, x, top + 8)
    marks = [_injection(fault, x, 16.0, bottom) for fault in struck(run)]
    moments = [at for at in (stop, episode.t_first, episode.t_regained) if at is not None]
    marks += [svg.line(x(at), 16.0, x(at), bottom, "moment") for at in moments]
    axis = svg.time_axis(_in_seconds(x, stop), 16.0, bottom, per_tick=60 if narrow else 100)
    told = "; ".join(f"{words(phase)} {format_duration(total)}" for phase, total in took.items())
    return svg.picture(form.width, bottom + 22, f"Phases of the recovery: {told}", [axis, *parts, *drawn, *marks])


def struck(run: Timeline) -> list[FaultRecord]:
    return [fault for fault in run.faults if fault.injected is not None]


def finished_saves(run: Timeline) -> list[tuple[str, int, object]]:
    """Returns (outcome, time, step) of each finished checkpoint. The outcome is `committed` or `failed`."""
    ended = ((str(each.get("event", "")).rpartition(".")[2], each["at"], each.get("step")) for each in run.checkpoints)
    return [save for save in ended if save[0] in SHAPES]


def job_phases(run: Timeline) -> Iterator[Segment]:
    """Yields the phases of the job. The phase `running` is split at standstills, in which no step ended for a long
    time."""
    usual = int(np.median(np.diff(run.progress.end))) if len(run.progress) > 1 else 0
    for segment in run.segments:
        begin = segment.begin
        if segment.phase == "running" and usual:
            ends = run.progress.end[(run.progress.end >= segment.begin) & (run.progress.end <= segment.end)]
            took = np.diff(ends, prepend=segment.begin, append=segment.end)
            for place in np.flatnonzero(took > max(STANDSTILL_TIMES * usual, STANDSTILL_NS_MIN)):
                stood = int(ends[place - 1]) if place else segment.begin
                until = stood + int(took[place])
                if stood > begin:
                    yield replace(segment, begin=begin, end=stood)
                yield replace(segment, phase=STANDSTILL, begin=stood, end=until)
                begin = until
        if begin < segment.end:
            yield replace(segment, begin=begin)


def _in_seconds(x: svg.Scale, zero_ns: int) -> svg.Scale:
    return replace(x, low=(x.low - zero_ns) / 1e9, high=(x.high - zero_ns) / 1e9)


def _moments(run: Timeline, episode: Episode, x: svg.Scale) -> Markup:
    named = [("recovered", episode.t_regained, "tick"), ("steps again", episode.t_first, "tick")]
    named += [(short(each.id, 24), each.injected, "fault-label") for each in run.faults if each.id in episode.faults]
    moments = [(name, x(at), class_) for name, at, class_ in named if at is not None]
    marks = [moment for moment in moments if x.start <= moment[1] <= x.stop]
    parts, free = [], x.stop + 16
    for told, at, class_ in _together(sorted(marks, key=lambda mark: -mark[1])):
        half = len(told) * (BOLD if class_ == "fault-label" else CHARACTER) / 2
        centre = min(at, free - half)
        if centre + half >= at - 2 and centre - half > 0:
            parts.append(svg.text(centre, 11, told, class_, "middle"))
            free = centre - half - 8
    return svg.join(parts)


def _together(marks: Sequence[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Joins the labels of marks of one kind at one place in a chart, for example to `steps again, recovered`."""
    merged: list[tuple[str, float, str]] = []
    for told, at, class_ in marks:
        if merged and merged[-1][2] == class_ and merged[-1][1] - at < 2:
            merged[-1] = (f"{told}, {merged[-1][0]}", merged[-1][1], class_)
        else:
            merged.append((told, at, class_))
    return merged


def _row_label(form: Layout, label: str, y: float, class_: str = "label") -> Markup:
    return svg.text(form.label - TITLE_GAP, y, label, class_, "end")


def _job(phases: Iterable[Segment], x: svg.Scale, y: float, height: float) -> Markup:
    parts = []
    for each in phases:
        left, label = x.clamp(each.begin), words(each.phase)
        width = max(x.clamp(each.end) - left, 0.7)
        took = format_duration(each.end - each.begin)
        parts.append(svg.rect(left, y, width, height, f"p-{each.phase}", f"{label}: {took}"))
        if len(label) * BOLD + 6 < width:
            parts.append(svg.text(x(each.begin) + 5, y + height - 5, label, f"on on-{each.phase}"))
    return svg.join(parts)


def _faults(run: Timeline, form: Layout, x: svg.Scale, top: float) -> tuple[list[Markup], float]:
    faults = sorted(struck(run), key=acted_at)[:60]
    if not faults:
        return [], top
    parts = [_row_label(form, form.name("Faults", "Fault"), top + 11)]
    free: list[float] = []
    for fault in faults:
        ended = run.end if fault.healed is None else max(fault.healed, acted_at(fault))
        left, right = x.clamp(acted_at(fault)), x.clamp(ended)
        label = fault.id if form.narrow or fault.id == fault.kind else f"{fault.id}: {fault.kind}"
        most = max(int(max(x.stop - right, left - x.start) / BOLD) - 1, 3)
        label = short(label, min(most, LABEL_MAX))
        needs = len(label) * BOLD + 6
        flip = right + needs > x.stop
        begin, end = (left - needs, right) if flip else (left, right + needs)
        row = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[row : row + 1] = [end]
        y = top + 16 * row
        parts.append(svg.rect(left, y + 3, max(right - left, 3), 9, "fault", _story(run, fault, ended)))
        at, anchor = (left - 5, "end") if flip else (max(right, left + 3) + 5, "start")
        parts.append(svg.text(at, y + 12, label, "fault-label", anchor))
    return parts, top + 16 * len(free) + 6


def _story(run: Timeline, fault: FaultRecord, ended: int) -> str:
    effects = [f"measured {quantity(each.get('measured'), str(each.get('unit') or ''))}" for each in fault.effects]
    target = f"{fault.id}: {fault.kind} of {target_text(fault.targets)}"
    lasted = f"lasted {seconds((ended - acted_at(fault)) / 1e9)}" + " and was not undone" * (fault.healed is None)
    return "\n".join([target, f"struck at {seconds((acted_at(fault) - run.begin) / 1e9)}", lasted, *effects[:3]])


def _injection(fault: FaultRecord, x: svg.Scale, top: float, bottom: float) -> Markup:
    at = acted_at(fault)
    return svg.line(x(at), top, x(at), bottom, "injected") if x.low <= at <= x.high else Markup("")


def _checkpoints(saves: Sequence[tuple[str, int, object]], x: svg.Scale, y: float) -> Markup:
    parts = []
    for kind, shape in SHAPES.items():
        for group in svg.near([save for save in saves if save[0] == kind], lambda save: x(save[1])):
            steps = ", ".join(dict.fromkeys(str(step) for _, _, step in group[:12]))
            many = f" and {len(group) - 12} more" if len(group) > 12 else ""
            title = svg.tag("title", f"Checkpoint {kind}: step {steps}{many}")
            path = svg.tag("path", d=shape(x(group[0][1]), y), class_=f"checkpoint-{kind}")
            parts.append(svg.tag("g", title, path))
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
            parts.append(_row_label(form, group, y + GROUP - 4, "label group"))
            y += GROUP
        if captions:
            parts.append(_captions(lane.lives, x, y + CAPTION - 4))
            y += CAPTION
        short = f"r{lane.rank}"
        placed = f"{lane.place} · {short}" if lane.group else ""
        label = form.name(placed if 0 < len(placed) <= PLACED_MAX else f"Rank {lane.rank}", short)
        parts.append(_row_label(form, label, y + form.lane / 2 + 4, "label hit" if lane.targeted else "label"))
        parts.append(ranks.draw_lane(cast, lane, x, y, form.lane, single))
        y += form.pitch - (CAPTION if captions else 0)
    for folded in cast.folded:
        y += FOLDED
        long = f"{folded.name} · {counted(folded.total, 'rank')}"
        label = form.name(long if len(long) <= PLACED_MAX else folded.name, folded.name)
        parts.append(_row_label(form, label, y + form.lane / 2 + 4))
        parts.append(ranks.draw_together(folded, x, y, form.lane))
        y += form.pitch
    return parts, max(y, top + form.pitch if cast.lanes else top) + 2


def _captions(lives: Sequence[Process], x: svg.Scale, y: float) -> Markup:
    parts = []
    for life, until in zip(lives, [*(later.started for later in lives[1:]), x.high], strict=False):
        room = x.clamp(until) - x.clamp(life.started)
        again = f", incarnation {life.incarnation}" if life.incarnation > 1 else ""
        name = next((n for n in (life.node + again, life.node) if len(n) * 6 < room), None)
        if name and x.low <= life.started <= x.high:
            parts.append(svg.text(x(life.started), y, name, "caption"))
    return svg.join(parts)


def _phase_row(phases: Sequence[Segment], total_ns: int, form: Layout, x: svg.Scale, y: float) -> Markup:
    took, name = format_duration(total_ns), phases[0].phase
    parts = [_row_label(form, words(name), y + 12)]
    right = x.start
    for each in phases:
        width = max(x.clamp(each.end) - x.clamp(each.begin), 1.5)
        title = f"{words(name)}: {format_duration(each.end - each.begin)}\n{PHASE_MEANING.get(name, '')}"
        parts.append(svg.rect(x.clamp(each.begin), y + 1, width, 14, f"p-{name}", title))
        right = x.clamp(each.begin) + width
    needs = len(took) * BOLD + 8
    flip = right + needs > x.stop
    left = x.clamp(phases[0].begin)
    inside = flip and right - x.clamp(phases[-1].begin) > needs
    at = right + 6 if not flip else right - 6 if inside else left - 6
    class_ = f"on on-{name}" if inside else "seconds"
    parts.append(svg.text(at, y + 12, took, class_, "end" if flip else "start"))
    return svg.join(parts)
