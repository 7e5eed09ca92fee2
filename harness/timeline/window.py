"""Cuts out the window of one rehearsal: the part of a job's log by which the rehearsal is judged.

A rehearsal is one scenario whose faults act on a longer job. The window of a rehearsal lasts from the event
`rehearsal.started` to the event `rehearsal.finished` or the end of the job. A window is widened until no outage, fault
or rollback lies partly outside the window. If two rehearsals share an outage, the windows of both contain the outage
and the faults of both rehearsals. The log is cut at the window's end, as if the job had ended; the timeline of the rest
is then cut at the window's start. Some events from before the window are kept, such as the last commit of a checkpoint.
"""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from harness.errors import UsageError
from harness.log import reading
from harness.log.reading import Log
from harness.timeline import timeline
from harness.timeline.lineage import NEVER, Epoch, Progress
from harness.timeline.phases import Segment, clipped
from harness.timeline.sorted_events import Launcher
from harness.timeline.timeline import Beside, Bools, Ints, Process, Steps, Timeline

Span = tuple[int, int]
Table = TypeVar("Table", Steps, Progress)
Teller = TypeVar("Teller", Process, Launcher)
_OUTCOMES = {"settled": "completed", "aborted": "aborted", "stopped": "interrupted", "skipped": "interrupted"}
"""The run's outcome, by the outcome of a rehearsal that ended before its job."""
STEPS_AFTER_CUT = 3  # steps after a stopped rehearsal, so that steps that its fault disturbed count whole


@dataclass(frozen=True)
class Rehearsed:
    """One rehearsal (one scenario whose faults act on a longer job), as the log records it. If no end is logged,
    `outcome` is empty and `end` is `None`."""

    name: str
    plan: Mapping[str, Any]
    begin: int
    end: int | None
    outcome: str
    reason: str


class JobLog:
    """The log of a job, which is read from disk once. Each timeline is built from a separate copy of the log."""

    def __init__(self, log: Log):
        self.log = log
        self.rehearsals = rehearsals(log)

    @cached_property
    def whole(self) -> Timeline:
        return timeline.build(_until(self.log, NEVER))

    def until(self, at: int) -> Timeline:
        """Returns the timeline of the job until time `at` (ns), as if no later steps had been planned."""
        end = _last_end(self.whole, at)
        planned = Rehearsed("", {}, self.whole.begin, end, "settled", "")
        reached = int(self.whole.progress.step[self.whole.progress.end <= end].max(initial=0))
        run = timeline.build(_cut(self.log, planned, end, reached))
        return replace(run, beside=Beside(job_goes_on=True, job=self.whole))

    def window(self, rehearsal: str) -> Timeline:
        """Returns the timeline of one rehearsal. Raises `UsageError` if no rehearsal in the log has this name."""
        found = next((each for each in self.rehearsals if each.name == rehearsal), None)
        if found is None:
            known = ", ".join(each.name for each in self.rehearsals) or "none"
            raise UsageError(f"unknown rehearsal {rehearsal!r}; this run began: {known}")
        if len(self.rehearsals) == 1 and found.outcome not in _OUTCOMES:
            return self.whole  # this one rehearsal is the whole job
        begin, end = _grown(self.whole, found)
        if found.outcome not in _OUTCOMES:
            end = NEVER  # to the end of the log
        reached = int(self.whole.progress.step[self.whole.progress.end <= end].max(initial=0))
        run = narrowed(timeline.build(_cut(self.log, found, end, reached)), begin)
        return replace(run, beside=_beside(self.whole, run, found, self.rehearsals))


def load(run_dir: pathlib.Path, rehearsal: str | None = None) -> Timeline:
    """Returns the timeline of the named rehearsal, or of the whole job if no name is given. Raises `UsageError` if the
    log does not have the named rehearsal, and `EventLogError` if the log cannot be read."""
    log = reading.read(run_dir / "events")
    return timeline.build(log) if rehearsal is None else JobLog(log).window(rehearsal)


def rehearsals(log: Log) -> list[Rehearsed]:
    events = log.harness.events if log.harness else []
    plans = {e["rehearsal"]: e.get("plan") or {} for e in events if e["event"] == "plan" and "rehearsal" in e}
    finished = {e.get("rehearsal"): e for e in events if e["event"] == "rehearsal.finished"}
    found = []
    for event in events:
        if event["event"] == "rehearsal.started":
            name = str(event.get("rehearsal"))
            last = finished.get(name, {})
            told = str(last.get("outcome", "")), str(last.get("reason", ""))
            found.append(Rehearsed(name, plans.get(name, {}), event["at"], last.get("at"), *told))
    return found


def fault_free_part(baseline: Timeline, run: Timeline) -> Timeline:
    """Returns the part of the fault-free run `baseline` with the steps that also lie in the window `run`."""
    kept = run.steps.step[run.steps.survives]
    if not len(kept):
        return baseline
    first, last = int(kept.min()), run.planned_steps or int(kept.max())
    rows = (baseline.steps.step >= first) & (baseline.steps.step <= last)
    progress = (baseline.progress.step >= first) & (baseline.progress.step <= last)
    workload = {**baseline.plan.get("workload", {}), "steps": last}
    return replace(
        baseline,
        plan={**baseline.plan, "workload": workload},
        steps=_rows(baseline.steps, rows),
        progress=_rows(baseline.progress, progress),
    )


def narrowed(whole: Timeline, begin: int) -> Timeline:
    """Cuts off the part of a timeline before a window. Times of processes from before the window are kept. A node or a
    training period that began before the window counts as begun at the window's start."""
    start = _start(whole, begin)
    if start <= whole.begin:
        return whole
    rows, complete = whole.steps.end > start, whole.progress.end > start
    stepping = set(np.unique(whole.steps.process[rows]).tolist())
    alive = [kept or row in stepping for row, kept in enumerate(_alive(whole, start))]
    process = _renumbered(alive)
    epoch = _renumbered(np.isin(np.arange(len(whole.epochs)), whole.steps.epoch[rows]).tolist())
    steps = _rows(whole.steps, rows)
    progress = _rows(whole.progress, complete)
    return replace(
        whole,
        begin=start,
        steps_before=int(whole.progress.step[_last_row(whole, start)]),
        steps=replace(steps, process=process[steps.process], epoch=epoch[steps.epoch]),
        processes=[_since(each, start) for each, kept in zip(whole.processes, alive, strict=True) if kept],
        launchers=[_since(each, start) for each in whole.launchers],
        slots=[replace(s, allocated=max(s.allocated, start)) for s in whole.slots if s.released > start],
        faults=[fault for fault in whole.faults if fault.injected is None or fault.injected >= start],
        segments=[_segment(segment, epoch) for segment in clipped(whole.segments, start, whole.end)],
        episodes=[
            replace(each, segments=tuple(_segment(segment, epoch) for segment in each.segments))
            for each in whole.episodes
            if each.t_stop >= start
        ],
        checkpoints=_checkpoints(whole, process, start),
        notices=_events(whole.notices, process, start),
        anomalies=_events(whole.anomalies, process, start),
        diagnoses=[event for event in whole.diagnoses if event["at"] > start],
        collectives=_events(whole.collectives, process, start),
        usage=_events(whole.usage, process, start),
        exits=[event for event in whole.exits if event["at"] > start],
        epochs=[_epoch(each, process, start) for number, each in enumerate(whole.epochs) if epoch[number] >= 0],
        progress=replace(progress, epoch=epoch[progress.epoch]),
        stretches=[
            replace(each, process=int(process[each.process]), epoch=int(epoch[each.epoch]))
            for each in whole.stretches
            if process[each.process] >= 0 and epoch[each.epoch] >= 0
        ],
        evidence=whole.evidence[whole.evidence >= start],
        told_events=_told_events(whole, start),
    )


def _beside(job: Timeline, run: Timeline, found: Rehearsed, every: Sequence[Rehearsed]) -> Beside:
    struck = [fault for fault in job.faults if fault.injected is not None and fault.injected <= run.end]
    here = {fault.id for fault in struck}
    others = [each for each in every if each.name != found.name]
    return Beside(
        faults=frozenset().union(*map(_faults, others)) - _faults(found),
        earlier=[fault for fault in struck if fault.injected is not None and fault.injected < run.begin],
        job_goes_on=found.outcome in _OUTCOMES,
        cut_short=found.outcome if _OUTCOMES.get(found.outcome) == "interrupted" else "",
        other_losses=next((each.name for each in others if _faults(each) & here and not _exact(each)), ""),
        job=job,
    )


def _faults(rehearsed: Rehearsed) -> frozenset[str]:
    return frozenset(str(fault["id"]) for fault in rehearsed.plan.get("faults") or ())


def _exact(rehearsed: Rehearsed) -> bool:
    bounds = (rehearsed.plan.get("expect") or {}).get("loss_continuity")
    return isinstance(bounds, Mapping) and bounds.get("mode", "exact") == "exact"


def _grown(job: Timeline, found: Rehearsed) -> Span:
    """Returns begin and end of the window, widened to contain each outage and fault that lies partly in the window."""
    begin, end = found.begin, job.end if found.end is None or found.outcome not in _OUTCOMES else found.end
    struck = {fault.id: fault.injected for fault in job.faults if fault.injected is not None}
    spans = list[Span]()
    for episode in job.episodes:
        first = min((struck.get(fault, episode.t_stop) for fault in episode.faults), default=episode.t_stop)
        spans.append((first, job.end if episode.t_regained is None else episode.t_regained))
    for fault in job.faults:
        if fault.injected is not None:
            last = max(fault.healed or job.end, fault.recovered or 0, *(each["at"] for each in fault.effects))
            spans.append((fault.injected, last))
    while touching := [span for span in spans if span[0] <= end and span[1] >= begin]:
        grown = min(begin, *(lo for lo, _ in touching)), max(end, *(hi for _, hi in touching))
        if grown == (begin, end):
            break
        begin, end = grown
    later = job.progress.end[job.progress.end >= end]
    if _OUTCOMES.get(found.outcome) == "interrupted":
        return begin, int(later[:STEPS_AFTER_CUT][-1]) if len(later) else end
    if found.outcome != "settled" or end >= job.end:
        return begin, end
    if end == found.end:
        return begin, _last_end(job, end)
    return begin, int(later[0]) if len(later) else job.end


def _last_end(job: Timeline, at: int) -> int:
    """Returns the end of the last step that was complete at the time `at`, or `at` if no step was complete."""
    row = _last_row(job, at)
    return int(job.progress.end[row]) if row >= 0 else at


def _last_row(job: Timeline, at: int) -> int:
    return int(np.searchsorted(job.progress.end, at, side="right")) - 1


def _until(log: Log, end: int) -> Log:
    keep = log.steps["end"] <= end
    steps = log.steps.rows(keep)
    place = np.concatenate([[0], np.cumsum(keep)])  # row in the log → row in the copy
    writers = []
    for writer in log.writers:
        if writer.header["at"] <= end:
            last = writer.start + len(writer.steps["end"])
            mine = slice(int(place[writer.start]), int(place[last]))
            events = [dict(event) for event in writer.events if event["at"] <= end]
            whole = len(events) == len(writer.events) and mine.stop - mine.start == last - writer.start
            own, torn = steps.rows(mine), writer.torn and whole
            gaps = tuple(gap for gap in writer.gaps if gap.since <= end)
            writers.append(replace(writer, events=events, steps=own, torn=torn, start=mine.start, gaps=gaps))
    harness = next((writer for writer in writers if writer.role == "harness"), None)
    return replace(log, writers=writers, steps=steps, harness=harness)


def _cut(log: Log, found: Rehearsed, end: int, reached: int) -> Log:
    shorter = _until(log, end)
    assert shorter.harness is not None  # it told of the rehearsal
    harness = replace(shorter.harness, events=_as_one(shorter.harness.events, found, end, reached))
    writers = [harness if writer is shorter.harness else writer for writer in shorter.writers]
    return replace(shorter, writers=writers, harness=harness)


def _as_one(events: Sequence[dict[str, Any]], found: Rehearsed, end: int, reached: int) -> list[dict[str, Any]]:
    """Returns the harness's events as if only this rehearsal had run: from the plan of the rehearsal to its end."""
    first = [event for event in events if event["event"] == "plan" and not event.get("rehearsal")][-1]
    plan = dict(first.get("plan") or {}) | {k: v for k, v in found.plan.items() if k not in ("workload", "seed")}
    others = [event for event in events if event["event"] != "plan"]
    last = []
    if found.outcome in _OUTCOMES and not any(event["event"] == "run.finished" for event in others):
        outcome = _OUTCOMES[found.outcome]
        about = {"reason": found.reason, "at": end, "mono_ns": end}
        last = [{"event": "abort"} | about] if outcome == "aborted" else []
        last.append({"event": "run.finished", "outcome": outcome} | about)
        if outcome == "completed":
            plan["workload"] = {**plan.get("workload", {}), "steps": reached}
    return [first | {"plan": plan}, *others, *last]


def _start(whole: Timeline, begin: int) -> int:
    """Returns when the window starts: at the end of the last complete step before `begin`. If steps in the window were
    rolled back, the window starts before the first rolled-back step."""
    at, steps = _last_end(whole, begin), whole.steps
    if not len(whole.progress) or int(whole.progress.end[0]) > begin:
        return whole.begin
    living = np.unique(steps.epoch[steps.end > at])
    lost = ~steps.survives & np.isin(steps.epoch, living)
    if not lost.any():
        return at
    first = np.flatnonzero(lost)[steps.begin[lost].argmin()]
    row = _last_row(whole, int(steps.begin[first]))
    if row >= 0 and whole.progress.epoch[row] == steps.epoch[first]:
        return min(at, int(whole.progress.end[row]))
    return min(at, int(steps.begin[steps.epoch == steps.epoch[first]].min()))


def _alive(whole: Timeline, start: int) -> list[bool]:
    newest = {(p.node, p.incarnation, p.local_rank): p.started for p in whole.processes if p.started <= start}
    released = {(slot.node, slot.incarnation): slot.released for slot in whole.slots}

    def gone(p: Process) -> bool:
        replaced = newest.get((p.node, p.incarnation, p.local_rank), p.started) > p.started
        ended = p.exited is not None and p.exited <= start
        return replaced or ended or released.get((p.node, p.incarnation), whole.end) <= start

    return [process.last_seen > start or not gone(process) for process in whole.processes]


def _since(each: Teller, start: int) -> Teller:
    return replace(each, gaps=tuple(gap for gap in each.gaps if gap.until > start)) if each.gaps else each


def _renumbered(kept: Sequence[bool]) -> Ints:
    chosen = np.array(kept, np.bool_)
    return np.where(chosen, np.cumsum(chosen) - 1, -1)


def _rows(table: Table, rows: Bools) -> Table:
    return replace(table, **{each.name: getattr(table, each.name)[rows] for each in fields(table)})


def _told_events(whole: Timeline, start: int) -> dict[str, int]:
    """Returns when each kind of event was last logged, without kinds that were due after `start` but not logged."""
    born = [process for process in whole.processes if process.started > start]
    before = {(p.node, p.incarnation, p.local_rank) for p in whole.processes if p.started <= start}
    replaced = any((p.node, p.incarnation, p.local_rank) in before for p in born)
    steps, every = whole.progress.step[whole.progress.end > start], whole.saves_every
    saves = not len(steps) or every is None or int(steps.max() - steps.min()) > every
    occasions = {
        **dict.fromkeys(("rendezvous", "restored", "phase", "agent.rendezvous"), bool(born)),
        **dict.fromkeys(("exiting", "worker.exit"), replaced),
        **dict.fromkeys(("checkpoint.started", "checkpoint.committed", "checkpoint.failed"), saves),
    }
    return {name: at for name, at in whole.told_events.items() if at > start or not occasions.get(name, True)}


def _segment(segment: Segment, epoch: Ints) -> Segment:
    return replace(segment, epoch=int(epoch[segment.epoch]) if segment.epoch >= 0 else -1)


def _epoch(epoch: Epoch, process: Ints, start: int) -> Epoch:
    members = tuple(int(process[index]) for index in epoch.processes if process[index] >= 0)
    return replace(epoch, processes=members, begin=max(epoch.begin, start + 1))


def _events(events: Iterable[dict[str, Any]], process: Ints, start: int) -> list[dict[str, Any]]:
    return [event | {"process": int(process[event["process"]])} for event in events if event["at"] > start]


def _checkpoints(whole: Timeline, process: Ints, start: int) -> list[dict[str, Any]]:
    """Returns the window's checkpoint events, and the newest commit before the window, which a restart may use."""
    committed = [e for e in whole.checkpoints if e["event"] == "checkpoint.committed" and e["at"] <= start]
    newest = max((event["at"] for event in committed), default=NEVER)
    before = [event | {"process": int(process[event["process"]])} for event in committed if event["at"] == newest]
    return [*before, *_events(whole.checkpoints, process, start)]
