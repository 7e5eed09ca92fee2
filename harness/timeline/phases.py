"""Finds the phase of the whole job at each moment of a run, such as `detect` or `restore`.

A mark is a time at which the phase may change, such as the injection of a fault or the end of a process. While a
process group does steps, the phase is `recompute` until a step passes the furthest step so far, and then `running`. A
*gap* is the time between the last complete step of one training period and the first complete step of the next. Within
a gap, the marks so far decide the phase. The phases of a run do not overlap, and cover the whole run.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from harness.timeline.lineage import Progress, pairwise_epochs
from harness.timeline.phase_names import PHASES


class Mark(Enum):
    """A kind of event that may change the phase of the job."""

    STRIKE = auto()  # a fault acts
    KILL_STRIKE = auto()  # a fault takes processes or a node: it must be noticed anew
    NOTICE = auto()  # the job has seen an eviction notice
    EVIDENCE = auto()  # the job has noticed that something is wrong
    UNCLEAN = auto()  # evidence, and nobody is saving any more
    STAY = auto()  # a worker runs
    LEAVE = auto()  # a worker begins to exit or is gone
    START = auto()  # a worker that tells the begin of its join was started ...
    STARTED = auto()  # ... and begins to join, or is gone
    OLD = auto()  # a worker is useless to the job from now on ...
    OLD_GONE = auto()  # ... and is gone
    SPENT = auto()  # a worker begins to exit, is old or gone: it no longer works for the job
    NODE = auto()  # a node can be used
    NODE_LOST = auto()  # a node cannot be used, or will be taken away
    AGENT = auto()  # a launcher waits in its rendezvous
    AGENT_BUSY = auto()  # it no longer does
    JOIN = auto()  # all ranks of world `who` are in
    BROKEN = auto()  # world `who` lost a member
    RESTORED = auto()  # all ranks of world `who` have restored their state
    ABORT = auto()  # the harness gave up: later events are not the job's own doing


@dataclass(frozen=True, slots=True)
class Event:
    at: int
    mark: Mark
    who: int = -1


@dataclass(frozen=True)
class Segment:
    """One phase of the job, from `begin` to `end` (ns). In the phase `running`, the job does steps that it had not done
    before. The phase `finish` follows the last planned step."""

    phase: str
    begin: int
    end: int
    epoch: int = -1  # row in Timeline.epochs of the step at work, if any


@dataclass(frozen=True)
class Gap:
    """A time without a complete step. `nodes` and `size` (ranks) describe the process group that ends the gap."""

    begin: int
    end: int
    before: int  # the epoch that stopped; -1: none
    epoch: int  # the epoch that ends the gap; -1: none did
    nodes: int  # if no process group ends the gap: the fewest nodes with which the job may run
    size: int
    same_world: bool  # the job goes back to an earlier step without forming a new process group
    first: bool = False  # the start of the run: nothing was lost yet


@dataclass
class _State:
    struck: bool = False
    noticed: bool = False  # somebody in the job knows
    draining: bool = False
    in_gap: bool = False
    staying: int = 0
    working: int = 0
    starting: int = 0
    old: int = 0
    nodes: int = 0
    agents: int = 0
    world: int = -1  # the newest world whose ranks are all in
    broken: bool = False
    joined_here: bool = False  # a world became whole in this gap
    restored: bool = False
    aborted: bool = False
    agents_known: bool = field(default=False)

    def apply(self, event: Event) -> None:  # noqa: C901, PLR0912  # a table: one mark a row
        match event.mark:
            case Mark.STRIKE:
                self.struck, self.noticed = True, self.noticed and self.in_gap
            case Mark.KILL_STRIKE:
                self.struck = True
                if self.working:  # without a worker nobody has to notice anew
                    self.noticed = self.draining = False
            case Mark.NOTICE:
                self.noticed = self.draining = True
            case Mark.EVIDENCE:
                self.noticed = True
            case Mark.UNCLEAN:
                self.noticed, self.draining = True, False
            case Mark.STAY:
                self.staying += 1
                self.working += 1
            case Mark.LEAVE:
                self.staying -= 1
                self.draining &= self.staying > 0
            case Mark.SPENT:
                self.working -= 1
            case Mark.START:
                self.starting += 1
            case Mark.STARTED:
                self.starting -= 1
            case Mark.OLD:
                self.old += 1
            case Mark.OLD_GONE:
                self.old -= 1
            case Mark.NODE:
                self.nodes += 1
            case Mark.NODE_LOST:
                self.nodes -= 1
            case Mark.AGENT:
                self.agents += 1
                self.agents_known = True
            case Mark.AGENT_BUSY:
                self.agents -= 1
            case Mark.JOIN:
                self.world, self.broken, self.restored = event.who, False, False
                self.joined_here, self.draining = True, False
            case Mark.BROKEN:
                self.broken |= event.who == self.world
            case Mark.RESTORED:
                self.restored |= event.who == self.world
            case Mark.ABORT:
                self.aborted = True

    def progressed(self) -> None:
        self.struck = self.noticed = self.draining = self.in_gap = False

    def stopped(self, first: bool) -> None:
        """Records that the job stopped, which begins an outage. An earlier sign of a failure is ignored unless a fault
        acted or an eviction notice was seen."""
        self.noticed = first or (self.noticed and (self.struck or self.draining))
        self.joined_here = self.restored = False
        self.in_gap = True

    def phase(self, gap: Gap, settled: bool) -> str:
        """Returns the phase of the job, by checks in the usual order of a recovery. `settled` is True if no more nodes
        are lost in this gap, so that the job waits for `gap.nodes` nodes only."""
        nodes = gap.nodes if settled else max(gap.nodes, self.nodes)
        if not self.noticed and not self.struck:
            return "interrupted_step"
        if not self.noticed and self.working > 0:  # without a worker nobody could notice
            return "detect"
        if self.draining:
            return "drain"
        if self.old > 0:
            return "teardown"
        if self.world >= 0 and not self.broken and (self.joined_here or gap.same_world):
            return "first_step" if self.restored else "restore"
        if self.nodes < nodes and (self.struck or not gap.first):
            return "reschedule"
        if self.starting > 0:
            return "startup"
        waiting = self.agents_known and self.agents >= nodes
        return "rendezvous" if waiting or self.staying * gap.nodes >= gap.size * nodes else "startup"


def walk(gaps: Sequence[Gap], marks: Iterable[Event]) -> list[Segment]:
    """Returns the phases in all gaps (times without a complete step), in order of time. `marks` need not be sorted."""
    state, segments = _State(), list[Segment]()
    ordered = sorted(marks, key=lambda event: event.at)
    losses = [event for event in ordered if event.mark is Mark.NODE_LOST]
    position = 0
    for gap in gaps:
        while position < len(ordered) and ordered[position].at < gap.begin:
            state.apply(ordered[position])
            position += 1
        state.stopped(gap.first)
        since, phase = gap.begin, ""
        last_loss = max((event.at for event in losses if gap.begin <= event.at < gap.end), default=gap.begin)
        while since < gap.end:
            while position < len(ordered) and ordered[position].at <= since:
                state.apply(ordered[position])
                position += 1
            if not (state.aborted and phase):
                phase = state.phase(gap, settled=since >= last_loss)
            until = min(ordered[position].at, gap.end) if position < len(ordered) else gap.end
            epoch = {"first_step": gap.epoch, "interrupted_step": gap.before}.get(phase, -1)
            segments.append(Segment(phase, since, until, epoch))
            since = until
        state.progressed()
    return segments


@dataclass(frozen=True)
class Episode:
    """An outage: from the last complete step until a step passes the furthest step that the job had reached."""

    t_stop: int  # end of the last complete step
    t_first: int | None  # end of the first new complete step
    t_regained: int | None  # None: never; `segments` then end with the run
    furthest_step: int  # the furthest step before the stop
    faults: tuple[str, ...]  # ids of the faults inside
    segments: tuple[Segment, ...]  # gapless from t_stop to t_regained (or the end of the run)

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else self.t_stop

    @property
    def phases_ns(self) -> dict[str, int]:
        """Returns the total time of each phase in the outage, in ns, in the usual order of phases."""
        sums = {phase: sum(s.end - s.begin for s in self.segments if s.phase == phase) for phase in PHASES}
        return {phase: amount for phase, amount in sums.items() if amount}


def progress_segments(progress: Progress) -> tuple[list[Segment], list[Episode]]:
    """Returns the segments of the phases `running` and `recompute`, and the outages, without segments of their own."""
    segments, episodes = list[Segment](), list[Episode]()
    open_at: int | None = None  # row of the last complete step before the episode that is open
    best = np.maximum.accumulate(progress.step) if len(progress) else progress.step
    for lo, hi in pairwise_epochs(progress):
        epoch, first_end, last_end = int(progress.epoch[lo]), int(progress.end[lo]), int(progress.end[hi - 1])
        open_at = lo - 1 if open_at is None and lo else open_at
        regained = first_end
        if open_at is not None:
            beyond = np.flatnonzero(progress.step[lo:hi] > best[open_at])
            regained = int(progress.end[lo + beyond[0]]) if len(beyond) else last_end
            if len(beyond):
                episodes.append(_episode(progress, open_at, regained, int(best[open_at])))
                open_at = None
        segments += [Segment("recompute", first_end, regained, epoch), Segment("running", regained, last_end, epoch)]
    if open_at is not None:
        episodes.append(_episode(progress, open_at, None, int(best[open_at])))
    return segments, episodes


def _episode(progress: Progress, row: int, regained: int | None, furthest: int) -> Episode:
    return Episode(int(progress.end[row]), int(progress.end[row + 1]), regained, furthest, (), ())


def merged(segments: Iterable[Segment]) -> list[Segment]:
    result: list[Segment] = []
    for segment in sorted(segments, key=lambda s: s.begin):
        if result and (result[-1].phase, result[-1].epoch) == (segment.phase, segment.epoch):
            result[-1] = Segment(segment.phase, result[-1].begin, segment.end, segment.epoch)
        elif segment.end > segment.begin:
            result.append(segment)
    return result


def clipped(segments: Sequence[Segment], begin: int, end: int) -> list[Segment]:
    first = bisect.bisect_right(segments, begin, key=lambda each: each.end)
    last = bisect.bisect_left(segments, end, key=lambda each: each.begin)
    inside = segments[first:last] if begin < end else ()
    return [Segment(s.phase, max(s.begin, begin), min(s.end, end), s.epoch) for s in inside]
