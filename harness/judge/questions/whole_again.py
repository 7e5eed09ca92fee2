"""Judges the job after its last recovery: its speed, its GPUs in use, how regularly it saves, and how soon it exits.

The job *uses* its number of ranks times the fault-free run's GPUs per rank. The GPUs that the job *has* are those that
it keeps to the end of the run, except spare nodes' GPUs. A spare node takes the place of a node that is lost for good.
A new GPU may stay unused for three times as long as the fault-free run took from its first allocation to its first
step. The time allowed for a new GPU begins when it is allocated and the node's launcher has logged a line.

A save is *due* at each step at which the fault-free run committed a checkpoint. A due save was *made* if the run
committed a checkpoint less than half a save interval before the due step, or later but before the next due step. A due
save was *missed* if it was not made although nothing disturbed the job. A save at a step that is not due was missed,
too, if it was begun or failed, but never committed. Saves at steps that are not due are ignored if the fault-free run
also began saves without committing them. After a change of more than optimizer settings, the pace is not judged, and a
missed save is inconclusive. After a change of more than optimizer settings, saves are due at the interval of the run's
own saves, if this interval is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.evidence import by_time, reported
from harness.evidence.by_time import Window
from harness.evidence.usual import Slow, exit_ns
from harness.judge import thresholds as limits
from harness.judge.bounds import BOUNDS, ExitBounds, PaceBounds, RhythmBounds, UseBounds
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.saves import Saves
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult, line, shown_ns
from harness.judge.verdict import Code, Doubt, Ground, Kind, Verdict
from harness.log.vocabulary import GAVE_UP
from harness.node.emitter import EXIT_LEFT
from harness.timeline.sorted_events import key_of
from harness.timeline.timeline import Bools, Ints, Slot, Timeline
from harness.units import format_duration

Figures = dict[str, Any]  # as in report.json
Lines = Sequence[Expectation] | str  # expectations, or the reason why nothing is judged


def _again(name: str, order: int, judged: Callable[[Analysis, Any], tuple[Figures, Lines]]) -> Score:
    def score(evidence: Analysis, bounds: Any) -> ScoreResult:
        values, lines = judged(evidence, bounds or BOUNDS[name]())
        if isinstance(lines, str):
            return ScoreResult(values, why_not=lines)
        return ScoreResult(values, lines if bounds else ())

    return Score(name, order, score)


def pace(evidence: Analysis, bounds: PaceBounds) -> tuple[Figures, Lines]:
    return {}, _pace(evidence, bounds.max_slowdown)


def _pace(evidence: Analysis, bound: float) -> Lines:
    pace = evidence.pace
    if isinstance(pace, str):
        return pace
    slow, allowed, reason = pace.slow(bound), pace.allowed(bound), ""
    if slow in (Slow.ON_THE_WHOLE, Slow.BESIDE_BEFORE):
        reason = f"{pace.told}, its median step {pace.median:.2f} ×; allowed: {allowed:.2f} ×"
    elif slow is Slow.IN_THE_END:
        most = f"allowed for a while: {limits.WORST_FACTOR * allowed:.2f} ×"
        reason = f"{pace.told}, but {pace.slowest:.2f} × for a while, and {pace.last:.2f} × in the end; {most}"
    elif not pace.known:
        return "no fault-free run had as many ranks as the job had at the end"
    elif pace.at_least > bound and pace.before > bound:
        return f"{pace.told}, and {pace.before:.2f} × already before the first fault"
    elif slow is Slow.IN_THE_END_BESIDE_BEFORE:
        reason = f"{pace.told}, but {pace.slowest / pace.before:.2f} × its time before the first fault in the end, too"
    elif pace.before < limits.FAST_BEFORE and pace.median > bound * pace.before:
        faster = f"before the first fault the job took only {pace.before:.2f} × the time of its fault-free run"
        return f"{faster}, and {pace.median / pace.before:.2f} × that since"
    remark = f", {pace.slowest:.2f} × now and then" * (slow is Slow.NO and pace.slowest > limits.WORST_FACTOR * allowed)
    observed = f"{pace.slowdown:.2f} ×, at least {pace.at_least:.2f} ×{remark}"
    before = f" of {pace.before:.2f} × before the fault" if bound < pace.at_least <= allowed else ""
    grounds = Ground(Kind.DURATION, of=pace, bound=bound)
    told = line("pace.max_slowdown", f"≤ {bound:g} ×{before}", observed, reason, grounds)
    if slow is Slow.IN_THE_END_BESIDE_BEFORE:  # no assumption: one would also excuse a recovery without an end
        told = replace(told, verdict=Verdict.INCONCLUSIVE, doubt=Doubt.FAULT_FREE_SLOW)
    in_the_end = slow in (Slow.IN_THE_END, Slow.IN_THE_END_BESIDE_BEFORE)
    return [replace(told, code=Code.PACE_SLOW_AGAIN if in_the_end else "")]


def gpus_in_use(evidence: Analysis, bounds: UseBounds) -> tuple[Figures, Lines]:
    run, most = evidence.run, bounds.max_idle_steps
    slots, patience = _kept(run), limits.GPU_PATIENCE * (evidence.usual.longest(_first_step_ns) or 0)
    began = {launcher.key: launcher.began for launcher in run.launchers}
    since = [max(slot.allocated, began.get(slot.key, 0)) + patience for slot in slots]
    idle = _idle_steps(evidence, since)
    values = {"gpus_at_the_end": len(slots), "idle_steps": idle}
    if not len(run.progress) or not slots:
        return values, "the log holds no step or no GPU"
    if not evidence.fault_free_runs:
        return values, "no fault-free run shows how many GPUs the job uses"
    spared = run.planned_size.spares and len({slot.key for slot in slots}) >= (run.planned_size.max_nodes or 0)
    for fault in run.faults:
        if fault.injected is not None and fault.replaced is False and not spared:
            return values, f"{fault.id} brings no replacement, so the job may have to leave GPUs idle"
        if fault.sticks and fault.injected is not None:
            return values, f"{fault.id} strikes each new life of its node, so the job may leave GPUs idle"
    if idle < most <= _idle_steps(evidence, [slot.allocated for slot in slots]):
        return values, "a GPU may have come too late for the job to use it"
    last = run.epochs[-1].processes if run.epochs else ()
    working = {run.processes[row].key for row in last}
    unused = {slot.node for slot in slots if slot.key not in working}
    text = f"the job left GPUs idle in its last {idle} steps: {', '.join(sorted(unused)) or 'some of them'}"
    return values, [line("gpus_in_use.max_idle_steps", f"< {most}", str(idle), "" if idle < most else text)]


def _kept(run: Timeline) -> list[Slot]:
    told = {key_of(each) for each in run.notices if each.get("source") != "peer"}
    stragglers = {key_of(each) for each in run.notices if each.get("source") in GAVE_UP}
    left = {key_of(each) for each in run.exits if each["rank"] is None and each["code"] == EXIT_LEFT}
    return [slot for slot in run.slots if slot.kept and slot.key not in stragglers | (told & left)]


def _first_step_ns(run: Timeline) -> int:
    allocated = min((slot.allocated for slot in run.slots), default=run.begin)
    return int(run.progress.end[0]) - allocated if len(run.progress) else 0


def _idle_steps(evidence: Analysis, ready: Sequence[int]) -> int:
    progress = evidence.run.progress
    worlds = [(len(other.slots), other.epochs[-1].size) for other in evidence.fault_free_runs if other.epochs]
    per_rank = max((gpus / size for gpus, size in worlds if size), default=1.0)
    has = np.searchsorted(np.sort(np.array(ready, np.int64)), progress.begin, side="right")
    if evidence.run.planned_size.spares:
        has = np.minimum(has, (evidence.run.planned_size.world_size or 0) * per_rank)
    busy = np.flatnonzero(has <= progress.world_size * per_rank)
    return len(progress) - 1 - (int(busy[-1]) if len(busy) else -1)


def exit_time(evidence: Analysis, bounds: ExitBounds) -> tuple[Figures, Lines]:
    taken, usual = exit_ns(evidence.run), None if evidence.new_work() else evidence.usual.longest(exit_ns)
    values = {name: None if ns is None else ns / S for name, ns in (("seconds", taken), ("usual_seconds", usual))}
    if taken is None:
        completed = evidence.run.outcome == "completed"
        active = "a fault was active until the end, or the ends of the commands were not recorded"
        return values, active if completed else "the job did not finish"
    limit = bounds.max if bounds.max is not None else max(limits.EXIT_LEAST_NS, limits.EXIT_FACTOR * (usual or 0))
    if taken > limit and usual is None and bounds.max is None:
        return values, "no fault-free run shows how long the exit takes"
    reason = f"the job took {format_duration(taken)} to end after its last step"
    return values, [Bound("exit_time.max", shown_ns).line(limit, taken, reason, Ground(Kind.DURATION))]


def checkpoint_rhythm(evidence: Analysis, bounds: RhythmBounds) -> tuple[Figures, Lines]:
    usual = _usual_saves(evidence)
    begun = _never_committed(evidence.saves, evidence.fault_free_saves, usual)
    tells = "checkpoints" in reported.told(evidence.run) or bool(evidence.saves.seen)
    if not tells or not len(usual):
        values = dict.fromkeys(("due", "missed", "missed_in_a_row"))
        # Another check finds a trainer that reports no saves at all.
        return values, "no fault-free run shows when a checkpoint is due" if tells else ()
    absent = ~_after_the_fault(evidence.run, evidence.saves, usual, evidence.disturbed, begun)
    due, missed = len(absent), int(absent.sum())
    in_a_row = max((part.stop - part.start for part in by_time.stretches(absent)), default=0)
    values = {"due": due, "missed": missed, "missed_in_a_row": in_a_row}
    uneven = len(set(np.diff(usual))) > 1
    if not evidence.run.checkpoints and (missed < due or due < limits.SEEN_MIN or uneven):
        return values, ()  # the harness may have missed some saves
    if (due < 2 and missed > 0) or not due:
        return values, f"{due or 'no'} save was due after the recovery, outside faults"
    none = next((f": one is none, as {each.why}" for each in evidence.saves.none.values()), "")
    text = f"{missed} of {due} checkpoints that the fault-free run made in these steps are missing"
    if begun:
        text = f"{missed} of {due} checkpoints that were due or begun, as that of step {begun[0][1]}, are missing"
    grounds, percent, most = (Ground(Kind.ABSENCE), Ground(Kind.DUE)), 100 * (due - missed) / due, bounds.max_missed
    reason = f"{text}, {in_a_row} in a row{none}" if in_a_row > most else ""
    lines = [line("checkpoint_rhythm.max_missed", f"≤ {most} in a row", str(in_a_row), reason, *grounds)]
    if due >= limits.SHARE_SAVES_MIN:
        reason, least = text + none if percent < bounds.min_percent else "", f"≥ {bounds.min_percent:.1f} %"
        lines.append(line("checkpoint_rhythm.min_percent", least, f"{percent:.1f} %", reason, *grounds))
    return values, lines


def _usual_saves(evidence: Analysis) -> Ints:
    run, fault_free, theirs = evidence.run, evidence.fault_free, evidence.fault_free_saves
    if fault_free is None or theirs is None or evidence.flaw(fault_free):
        return np.zeros(0, np.int64)
    due = np.unique(np.array([save.step for save in (theirs.whole if run.checkpoints else theirs.seen)], np.int64))
    later = evidence.saves.steps[evidence.saves.steps > run.step_before(run.work_changed_at)]
    if len(later) >= limits.STEADY_SAVES:
        every = int(np.median(np.diff(later)))
        due = np.append(due[due < later[0]], np.arange(int(later[0]), run.reached_step + 1, every))
    return due


def _never_committed(saves: Saves, theirs: Saves | None, due: Ints) -> list[tuple[int, int]]:
    if theirs is not None and {save.step for save in theirs.all} != {save.step for save in theirs.whole}:
        return []
    done = {-1, *due.tolist(), *(save.step for save in saves.whole)}
    first = {save.step: save.at for save in reversed(saves.all) if save.step not in done}
    return sorted((at, step) for step, at in first.items())


def _after_the_fault(
    run: Timeline, saves: Saves, due: Ints, disturbed: Sequence[Window], begun: Sequence[tuple[int, int]] = ()
) -> Bools:
    interval = float(np.median(np.diff(due))) if len(due) > 1 else float(due[0])
    committed = np.append(saves.steps, np.iinfo(np.int64).max)
    order = np.argsort(run.progress.step, kind="stable")  # rows are in order of time; the last row of a step counts
    step, end = run.progress.step[order], run.progress.end[order]
    last = np.append(np.diff(step) > 0, True)[: len(step)]
    step, end = step[last], end[last]
    due = due[(due >= step[0]) & (due <= step[-1])] if len(step) else due[:0]
    if not len(step):
        return np.zeros(0, np.bool_)
    made = committed[np.searchsorted(committed, due - interval / 2)] < due + interval
    begin = end[np.searchsorted(step, due)]
    until = end[np.minimum(np.searchsorted(step, due + interval - 1), len(step) - 1)]
    at = np.array([at for at, _ in begun], np.int64)
    later = np.minimum(np.searchsorted(run.progress.end, at) + round(interval), len(run.progress.end) - 1)
    made, begin = np.append(made, np.zeros(len(at), np.bool_)), np.append(begin, at)
    until = np.append(until, run.progress.end[later])
    ended = ((save.begun, save.ended) for save in saves.good if save.begun is not None)
    writing = by_time.union((begun + 1, over + limits.WRITTEN_NS) for begun, over in ended if over is not None)
    in_peace = by_time.quiet(begin, np.maximum(until, begin + 1), disturbed)
    counts = (in_peace & by_time.quiet(begin, begin + 1, writing)) | made
    if disturbed:
        counts &= begin >= disturbed[0][0]
    in_order = np.argsort(begin, kind="stable")
    return np.asarray(made[in_order][counts[in_order]], np.bool_)


SCORES = (
    _again("pace", 40, pace),
    _again("checkpoint_rhythm", 41, checkpoint_rhythm),
    _again("gpus_in_use", 43, gpus_in_use),
    _again("exit_time", 44, exit_time),
)
