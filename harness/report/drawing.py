"""Turns the evidence of a run into plain numbers and words for its charts and lists of events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.losses import Curve
from harness.node.emitter import AXES
from harness.report.charts.gantt import CheckpointMark, Chronicle, Fault, Phase, Recovery
from harness.report.charts.lanes import AllSteps, Cast, Lane, WorkerBar
from harness.report.charts.loss_curves import Curves, RolledBack, Series
from harness.report.view import target_text
from harness.report.words import DASH, NAMES, PHASE_MEANING, plain, quantity, seconds, short, short_path, size, words
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import Episode, FaultRecord, Process, Segment, Timeline
from harness.units import format_duration

LANES_MAX = 32
FOLDED_MAX = 32  # groups with one row each
UNFOLDED_MAX = 128  # ranks in folded groups whose rows are drawn, too
Coordinates = Mapping[str, tuple[int, int]]
FINGERPRINT = 12  # characters of it that are shown
# By what a trainer is started, and the key of it.
STARTERS = ("torchrun", "accelerate", "deepspeed", "module", "command")
TRAINER_MAX = 60  # characters
STANDSTILL = "standstill"  # no phase of the log: a part of `running` in which no step came to its end
STANDSTILL_TIMES = 5  # a step that takes so many usual ones, and at least so long, is one
STANDSTILL_NS_MIN = 2 * 10**9
EventRow = tuple[str, str, str]  # when, where, what


def log_lists(run: Timeline) -> dict[str, list[EventRow]]:
    """Returns events of the log as rows of text."""
    ended = [event for event in run.checkpoints if event.get("event") != "checkpoint.started"]
    lists = {"notices": run.notices, "anomalies": run.anomalies, "checkpoints": ended}
    return {name: _event_rows(events, run) for name, events in lists.items()}


def trainer(plan: Mapping[str, Any]) -> str:
    """Returns `reference`, or the trainer's command: `torchrun ../train.py`; empty if the plan does not tell."""
    workload = plan.get("workload")
    written = workload.get("trainer") if isinstance(workload, Mapping) else None
    if not isinstance(written, Mapping):
        return short(str(written or ""), TRAINER_MAX)
    kind = next((kind for kind in STARTERS if written.get(kind)), "")
    started = written.get(kind, "")
    words = " ".join(map(str, started)) if isinstance(started, list) else f"{kind} {started}".strip()
    return short(short_path(words), TRAINER_MAX)


def chronicle(run: Timeline) -> Chronicle:
    ended = [(event, str(event.get("event", "")).rpartition(".")[2]) for event in run.checkpoints]
    return Chronicle(
        duration=_since(run, run.end),
        phases=[_phase(run, part) for segment in run.segments for part in _without_standstills(run, segment)],
        faults=[_fault(run, fault, fault.injected) for fault in run.faults if fault.injected is not None],
        checkpoints=[
            CheckpointMark(_since(run, event["at"]), event.get("step"), "committed" if how == "committed" else "failed")
            for event, how in ended
            if how in ("committed", "failed")
        ],
        recoveries=[_recovery(run, episode) for episode in run.episodes],
    )


def _without_standstills(run: Timeline, segment: Segment) -> Iterator[Segment]:
    """Yields the segment; a running one is cut into parts with steps and parts in which the job stood still."""
    ends = run.progress.end[(run.progress.end >= segment.begin) & (run.progress.end <= segment.end)]
    took = np.diff(ends, prepend=segment.begin, append=segment.end)
    usual = int(np.median(np.diff(run.progress.end))) if len(run.progress) > 1 else 0
    begin = segment.begin
    if segment.phase == "running" and usual:
        for place in np.flatnonzero(took > max(STANDSTILL_TIMES * usual, STANDSTILL_NS_MIN)):
            stood = int(ends[place - 1]) if place else segment.begin
            until = stood + int(took[place])
            if stood > begin:
                yield replace(segment, begin=begin, end=stood)
            yield replace(segment, phase=STANDSTILL, begin=stood, end=until)
            begin = until
    if begin < segment.end:
        yield replace(segment, begin=begin)


def phases_used(run: Chronicle) -> list[str]:
    """Returns the phases that the chart shows, for the legend, in the order of a recovery."""
    used = {phase.name for phase in run.phases}
    return [phase for phase in NAMES if phase in used] + sorted(used - set(NAMES))


def curves(analysis: Analysis) -> Curves:
    """Returns judged curves, step times, and each rank's loss difference from the fault-free run."""
    run = analysis.run
    steps = run.steps
    # Of what was rolled back: what the lowest rank had done, process by process.
    rows = np.flatnonzero(~steps.survives)
    rows = rows[steps.rank[rows] == steps.rank[rows].min(initial=np.iinfo(np.int64).max)]
    owners = np.unique(steps.process[rows])[:64]
    found = [rows[steps.process[rows] == owner] for owner in owners]
    return Curves(
        ours=line(analysis.curve),
        fault_free=line(analysis.fault_free_curve) if analysis.fault_free_curve else None,
        apart=analysis.apart,
        last_step=int(steps.step.max()) if len(steps) else 0,
        resumes=sorted({process.restored_step for process in run.processes if process.restored_step}),
        rolled_back=[RolledBack(steps.step[mine].astype(np.float64), steps.loss[mine]) for mine in found],
        struck=[(plain(each.id), _under_way(run, each.injected)) for each in run.faults if each.injected is not None],
    )


def _under_way(run: Timeline, at: int) -> float:
    """Returns the step under way at this moment: the one after the last complete step."""
    done = int(np.searchsorted(run.progress.end, at, side="right"))
    return float(run.progress.step[done - 1] + run.stride) if done else 0.0


def line(curve: Curve) -> Series:
    return Series(curve.step.astype(np.float64), curve.loss, curve.took_ns / 1e9)


def cast(run: Timeline, most: int = LANES_MAX) -> Cast:
    """Chooses the ranks of a chart: all in order if they are at most `most`, otherwise the worst: hit by a fault, died,
    lost the most time. Groups along the mesh's outermost axis stay together: only those with a rank that was hit have a
    row for each of their ranks, if one is known, and the others one for each group."""
    steps = run.steps
    # Seconds in surviving steps, for each rank that did any step.
    spent = np.where(steps.survives, steps.end - steps.begin, 0) / 1e9
    told, group = np.unique(steps.rank, return_inverse=True)
    sums = np.bincount(group, weights=spent, minlength=len(told))
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
    kept = (steps.end[steps.survives] - steps.begin[steps.survives]) / 1e9
    usual_s = float(np.median(kept)) if len(kept) else 0.0
    everybody = AllSteps(steps.begin, steps.end, steps.survives, run.begin)
    lanes = [_lane(run, rank, rank in hit, groups[rank], places.get(rank, {})) for rank in chosen]
    shown = len(ranks) <= UNFOLDED_MAX
    folded = []
    for name in apart[:FOLDED_MAX]:
        mine = {rank: places.get(rank, {}) for rank in ranks if groups[rank] == name}
        within = [_lane(run, rank, False, name, place) for rank, place in mine.items() if shown]
        folded.append(_folded(run, name, mine, within, usual_s))
    return Cast(lanes, len(ranks), usual_s, everybody, folded=folded)


def _folded(run: Timeline, name: str, ranks: Collection[int], lanes: Sequence[Lane], usual_s: float) -> Cast:
    steps = run.steps
    rows = np.flatnonzero(np.isin(steps.rank, [*ranks]))
    theirs = AllSteps(steps.begin[rows], steps.end[rows], steps.survives[rows], run.begin)
    ends = [_end(run, process) for process in run.processes if died(process) and process.rank in ranks]
    return Cast(lanes, len(ranks), usual_s, theirs, name or "elsewhere", died=ends)


def _by_number(group: str) -> tuple[int, str]:
    """Sorts `pp 10` behind `pp 2`."""
    return len(group), group


def _end(run: Timeline, process: Process) -> float:
    return _since(run, process.last_seen if process.exited is None else process.exited)


def _at(process: Process) -> str:
    axes = ", ".join(f"{axis} {at} of {size}" for axis, (at, size) in process.coordinates.items())
    return f"Rank {process.rank}" + (f" ({axes})" if axes else "")


def _group(place: Coordinates) -> str:
    """Returns `pp 1`: the outermost axis of several along which there are several ranks."""
    axes = [axis for axis in AXES if place.get(axis, (0, 1))[1] > 1]
    return f"{axes[0]} {place[axes[0]][0]}" if len(axes) > 1 else ""


def died(process: Process) -> bool:
    """Tells whether a process ended with an error: neither after its work nor after an orderly drain."""
    return process.exit_code is not None and process.exit_code not in CLEAN_CODES


def _since(run: Timeline, at: int) -> float:
    return (at - run.begin) / 1e9


def _phase(run: Timeline, segment: Segment) -> Phase:
    name = segment.phase
    begin, end = _since(run, segment.begin), _since(run, segment.end)
    return Phase(name, words(name), begin, end, PHASE_MEANING.get(name, ""))


def _recovery(run: Timeline, episode: Episode) -> Recovery:
    return Recovery(
        stop=_since(run, episode.t_stop),
        end=_since(run, episode.end),
        first=None if episode.t_first is None else _since(run, episode.t_first),
        regained=None if episode.t_regained is None else _since(run, episode.t_regained),
        faults=episode.faults,
        phases=[_phase(run, segment) for segment in episode.segments],
    )


def _fault(run: Timeline, fault: FaultRecord, injected: int) -> Fault:
    ended = run.end if fault.healed is None else max(fault.healed, injected)
    effects = [f"measured {quantity(e.get('measured'), str(e.get('unit') or ''))}" for e in fault.effects]
    target = f"{fault.id}: {fault.kind} of {target_text(fault.targets)}"
    lasted = f"lasted {seconds((ended - injected) / 1e9)}" + " and was not undone" * (fault.healed is None)
    story = "\n".join([target, f"struck at {seconds(_since(run, injected))}", lasted, *effects[:3]])
    return Fault(plain(fault.id), plain(fault.kind), _since(run, injected), _since(run, ended), story)


def _hit(run: Timeline) -> set[int]:
    """Returns the ranks that a fault aimed at, by number or through their node."""
    hit: set[int] = set()
    for target in (target for fault in run.faults for target in fault.targets):
        if target.get("rank") is not None:
            hit.add(int(target["rank"]))
        else:
            place = (target.get("node"), target.get("incarnation"))
            hit.update(p.rank for p in run.processes if (p.node, p.incarnation) == place)
    return hit


def _lane(run: Timeline, rank: int, targeted: bool, group: str, place: Coordinates) -> Lane:
    steps = run.steps
    rows = np.flatnonzero(steps.rank == rank)
    lives = sorted((_life(run, p) for p in run.processes if p.rank == rank), key=lambda life: life.started)
    return Lane(
        rank=rank,
        lives=lives,
        targeted=targeted,
        group=group,
        place=" ".join(text for axis, (at, size) in place.items() if size > 1 and (text := f"{axis} {at}") != group),
        begin=(steps.begin[rows] - run.begin) / 1e9,
        end=(steps.end[rows] - run.begin) / 1e9,
        step=steps.step[rows],
        loss=steps.loss[rows],
        survives=steps.survives[rows],
    )


def _life(run: Timeline, process: Process) -> WorkerBar:
    rendezvous, restored = process.rendezvous, process.restored
    node = plain(process.node)
    return WorkerBar(
        place=f"{_at(process)} on {node}, incarnation {process.incarnation}, pid {process.pid}",
        story=_story(process),
        node=node,
        incarnation=process.incarnation,
        started=_since(run, process.started),
        rendezvous=None if rendezvous is None else _since(run, rendezvous),
        restored=None if restored is None else _since(run, restored),
        ended=_end(run, process),
        exit_code=process.exit_code,
        died=died(process),
    )


def _story(process: Process) -> str:
    source = short_path(process.source or "an unknown place")
    state = "a state of an unknown step" if process.restored_step is None else f"step {process.restored_step}"
    fresh = not process.restored_step and (process.restored is None or process.restored_step == 0)
    start = "started from scratch" if fresh else f"restored {state} from {source}"
    if process.exit_code is None:
        return f"{start}; no exit recorded"
    return f"{start}; exit code {process.exit_code}" + (f" ({process.exit_reason})" if process.exit_reason else "")


def _event_rows(events: Sequence[Mapping[str, Any]], run: Timeline) -> list[EventRow]:
    rows = []
    for event in events:
        at, node, rank = event.get("at"), event.get("node"), event.get("rank")
        when = seconds(_since(run, at)) if isinstance(at, int) else DASH
        where = DASH if node is None and rank is None else target_text({"node": node, "rank": rank})
        rows.append((when, where, _what(event)))
    return rows


_NOT_SHOWN = {"at", "node", "rank", "incarnation", "process", "event", "wall_ns", "mono_ns"}


def _what(event: Mapping[str, Any]) -> str:
    """Formats a log event as `committed: step 20, kind periodic, 15 MiB, duration 27 ms`."""
    fields = ", ".join(_field(key, value) for key, value in event.items() if key not in _NOT_SHOWN)
    _, dot, edge = str(event.get("event", "")).partition(".")
    return f"{edge}: {fields}" if dot else fields


def _field(key: str, value: object) -> str:
    if isinstance(value, int) and key == "bytes":
        return size(value)
    if isinstance(value, int) and key.endswith("_ns"):
        return f"{key.removesuffix('_ns')} {format_duration(value)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{key} {', '.join(short_path(str(item)) for item in value)}"
    key = key.replace("_", " ")
    if key in ("content", "tensors"):  # a digest, maybe behind its kind
        key = "fingerprint" if key == "content" else "fingerprint of its tensors"
        return f"{key} {str(value).rpartition(':')[2][:FINGERPRINT]}"
    return f"{key} {short_path(str(value))}"
