"""Is the job whole again after its last recovery: as fast as before, with all its GPUs in use, and soon over?
Does it save as often ("3 of 9 checkpoints are missing")?

For its pace, see `harness.judge.facts.usual`. Did it stand still, for so long while nothing disturbed it that something
happened that no fault explains?

The job *uses* as many GPUs as its world has ranks, times the GPUs that a rank of the fault-free run has. It *has* those
that were allocated to it until its end; a new one counts from when it can be expected to step: three times as long
after its allocation, or after the first word of a launcher there (a slow engine starts it late), as the fault-free run
took from its first allocation to its first step.

A save is *due* at each step of which the fault-free run committed a checkpoint. It was *made* when the run committed
one from half an interval before that step until the next one is due; so a late one counts, and so does a rhythm that
has moved. One that was not made counts as missed only where nothing disturbed the job meanwhile.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.judge.bounds import ExitBounds, PaceBounds, RhythmBounds, UseBounds
from harness.judge.facts import by_time, reported
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Window
from harness.judge.facts.saves import Saves
from harness.judge.facts.usual import FAST_BEFORE, WORST_FACTOR, Slow, exit_ns
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult, line, shown_ns
from harness.judge.verdict import Code, Doubt, Ground, Kind, Verdict
from harness.node.emitter import EXIT_LEFT
from harness.timeline.timeline import Bools, Ints, Slot, Timeline
from harness.units import format_duration

PATIENCE = 3  # times the usual time until a new GPU steps
EXIT_FACTOR = 3  # times as long as without a fault
EXIT_LEAST_NS = 30 * S
SHARE_SAVES_MIN = 4  # saves that were due, from which on their share counts
SEEN_MIN = 3  # saves that the harness saw without a fault: if it sees none of them now, none was made
WRITTEN_NS = 100_000_000  # so soon after it told the end of a save, who writes it may make another one


class _Again(Score):
    """Judged by default, where the evidence says something of it."""

    @abc.abstractmethod
    def values(self, evidence: Analysis) -> dict[str, Any]:
        """As in report.json."""

    @abc.abstractmethod
    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: Any) -> Sequence[Expectation] | str:
        """Or why the evidence says nothing of it."""

    def score(self, evidence: Analysis, bounds: Any) -> ScoreResult:
        values = self.values(evidence)
        lines = () if bounds is None else self.lines(evidence, values, bounds)
        if isinstance(lines, str):
            return ScoreResult(values, not_judged=[(self.by_default, lines)])
        return ScoreResult(values, lines)


class PaceScore(_Again):
    name = "pace"
    order = 40

    def values(self, evidence: Analysis) -> dict[str, Any]:
        return {}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: PaceBounds) -> Sequence[Expectation] | str:
        pace, bound = evidence.pace, bounds.max_slowdown
        if isinstance(pace, str):
            return pace
        slow, allowed, reason = pace.slow(bound), pace.allowed(bound), ""
        if slow in (Slow.ON_THE_WHOLE, Slow.BESIDE_BEFORE):
            reason = f"{pace.told}, its median step {pace.median:.2f} ×; allowed: {allowed:.2f} ×"
        elif slow is Slow.NOW_AND_THEN:
            most = f"allowed for a while: {WORST_FACTOR * allowed:.2f} ×"
            reason = f"{pace.told}, but {pace.slowest:.2f} × now and then; {most}"
        elif not pace.known:
            return "no fault-free run had as many ranks as the job had at the end"
        elif pace.at_least > bound and pace.before > bound:
            return f"{pace.told}, and {pace.before:.2f} × already before the first fault"
        elif slow is Slow.NOW_AND_THEN_BESIDE_BEFORE:
            times = pace.slowest / pace.before
            reason = f"{pace.told}, but now and then {times:.2f} × its time before the first fault"
        elif pace.before < FAST_BEFORE and pace.median > bound * pace.before:
            faster = f"before the first fault the job took only {pace.before:.2f} × the time of its fault-free run"
            return f"{faster}, and {pace.median / pace.before:.2f} × that since"
        observed = f"{pace.slowdown:.2f} ×, at least {pace.at_least:.2f} ×"
        before = f" of {pace.before:.2f} × before the fault" if bound < pace.at_least <= allowed else ""
        grounds = Ground(Kind.DURATION, of=pace, bound=bound)
        told = line("pace.max_slowdown", f"≤ {bound:g} ×{before}", observed, reason, grounds)
        if slow is Slow.NOW_AND_THEN_BESIDE_BEFORE:  # that excuses no recovery that never ended
            told = replace(told, verdict=Verdict.INCONCLUSIVE, doubt=Doubt.FAULT_FREE_SLOW)
        now_and_then = slow in (Slow.NOW_AND_THEN, Slow.NOW_AND_THEN_BESIDE_BEFORE)
        return [replace(told, code=Code.PACE_SLOW_AGAIN if now_and_then else "")]


class GpusInUse(_Again):
    name = "gpus_in_use"
    order = 43

    def values(self, evidence: Analysis) -> dict[str, Any]:
        slots, patience = _kept(evidence.run), PATIENCE * (evidence.usual.longest(_first_step_ns) or 0)
        began = {launcher.key: launcher.began for launcher in evidence.run.launchers}
        since = (max(slot.allocated, began.get((slot.node, slot.incarnation), 0)) for slot in slots)
        return {"gpus_at_the_end": len(slots), "idle_steps": _idle_steps(evidence, [at + patience for at in since])}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: UseBounds) -> Sequence[Expectation] | str:
        run, slots, idle = evidence.run, _kept(evidence.run), values["idle_steps"]
        if not len(run.progress) or not slots:
            return "the log holds no step or no GPU"
        if not evidence.fault_free_runs:
            return "no fault-free run shows how many GPUs the job uses"
        for fault in run.faults:
            if fault.injected is not None and fault.replaced is False:
                return f"{fault.id} brings no replacement, so the job may have to leave GPUs idle"
        if idle < bounds.max_idle_steps <= _idle_steps(evidence, [slot.allocated for slot in slots]):
            return "a GPU may have come too late for the job to use it"
        last = run.epochs[-1].processes if run.epochs else ()
        working = {(run.processes[row].node, run.processes[row].incarnation) for row in last}
        unused = {slot.node for slot in slots if (slot.node, slot.incarnation) not in working}
        text = f"the job left GPUs idle in its last {idle} steps: {', '.join(sorted(unused)) or 'some of them'}"
        reason = "" if idle < bounds.max_idle_steps else text
        return [line("gpus_in_use.max_idle_steps", f"< {bounds.max_idle_steps}", str(idle), reason)]


def _kept(run: Timeline) -> list[Slot]:
    """Allocated to the end, and not on a node that said it leaves the job for good."""
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    left = {(e["node"], e["incarnation"]) for e in run.exits if e["rank"] is None and e["code"] == EXIT_LEFT}
    excluded = {(n["node"], n["incarnation"]) for n in run.notices if n.get("source") == "straggler"} | (told & left)
    return [slot for slot in run.slots if slot.kept and (slot.node, slot.incarnation) not in excluded]


def _first_step_ns(run: Timeline) -> int:
    allocated = min((slot.allocated for slot in run.slots), default=run.begin)
    return int(run.progress.end[0]) - allocated if len(run.progress) else 0


def _idle_steps(evidence: Analysis, ready: Sequence[int]) -> int:
    """How many steps in a row, up to the last one, were done without a GPU that could have had a part in them. `ready`:
    since when each could."""
    progress = evidence.run.progress
    worlds = [(len(other.slots), other.epochs[-1].size) for other in evidence.fault_free_runs if other.epochs]
    per_rank = max((gpus / size for gpus, size in worlds if size), default=1.0)
    has = np.searchsorted(np.sort(np.array(ready, np.int64)), progress.begin, side="right")
    busy = np.flatnonzero(has <= progress.world_size * per_rank)
    return len(progress) - 1 - (int(busy[-1]) if len(busy) else -1)


class ExitTime(_Again):
    name = "exit_time"
    order = 44

    def values(self, evidence: Analysis) -> dict[str, Any]:
        taken, usual = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
        found = {"seconds": taken, "usual_seconds": usual}
        return {name: None if ns is None else ns / S for name, ns in found.items()}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: ExitBounds) -> Sequence[Expectation] | str:
        taken, usual = exit_ns(evidence.run), evidence.usual.longest(exit_ns)
        if taken is None and evidence.run.outcome == "completed":
            return "a fault was active until the end, or the ends of the commands were not recorded"
        if taken is None:
            return "the job did not finish"
        limit = bounds.max if bounds.max is not None else max(EXIT_LEAST_NS, EXIT_FACTOR * (usual or 0))
        if taken > limit and usual is None and bounds.max is None:
            return "no fault-free run shows how long the exit takes"
        reason = f"the job took {format_duration(taken)} to end after its last step"
        return [Bound("exit_time.max", shown_ns).line(limit, taken, reason, Ground(Kind.DURATION))]


class CheckpointRhythm(_Again):
    name = "checkpoint_rhythm"
    order = 41

    def values(self, evidence: Analysis) -> dict[str, Any]:
        usual = _usual_saves(evidence)
        if not _tells_saves(evidence) or not len(usual):
            return {"due": None, "missed": None, "missed_in_a_row": None}
        missed = ~_after_the_fault(evidence.run, evidence.saves, usual, evidence.disturbed)
        in_a_row = max((part.stop - part.start for part in by_time.stretches(missed)), default=0)
        return {"due": len(missed), "missed": int(missed.sum()), "missed_in_a_row": in_a_row}

    def lines(self, evidence: Analysis, values: dict[str, Any], bounds: RhythmBounds) -> Sequence[Expectation] | str:
        due, missed, in_a_row = (values[name] for name in ("due", "missed", "missed_in_a_row"))
        if not _tells_saves(evidence):
            return ()  # that they are not told at all is said elsewhere
        if due is None:
            return "no fault-free run shows when a checkpoint is due"
        uneven = len(set(np.diff(_usual_saves(evidence)))) > 1
        if not evidence.run.checkpoints and (missed < due or due < SEEN_MIN or uneven):
            return ()  # what is only seen may have been there more often
        if (due < 2 and missed > 0) or not due:
            return f"{due or 'no'} save was due after the recovery, outside faults"
        none = next((f": one is none, as {each.why}" for each in evidence.saves.none.values()), "")
        text = f"{missed} of {due} checkpoints that the fault-free run made in these steps are missing"
        absent, percent = Ground(Kind.ABSENCE), 100 * (due - missed) / due
        reason = f"{text}, {in_a_row} in a row{none}" if in_a_row > bounds.max_missed else ""
        at_once = f"≤ {bounds.max_missed} in a row"
        lines = [line("checkpoint_rhythm.max_missed", at_once, str(in_a_row), reason, absent)]
        if due >= SHARE_SAVES_MIN:
            reason, least = text + none if percent < bounds.min_percent else "", f"≥ {bounds.min_percent:.1f} %"
            lines.append(line("checkpoint_rhythm.min_percent", least, f"{percent:.1f} %", reason, absent))
        return lines


def _tells_saves(evidence: Analysis) -> bool:
    return "checkpoints" in reported.told(evidence.run) or bool(evidence.saves.seen)


def _usual_saves(evidence: Analysis) -> Ints:
    """The steps of which the fault-free run committed a checkpoint, in order; as seen, where none is told."""
    run, fault_free, theirs = evidence.run, evidence.fault_free, evidence.fault_free_saves
    if fault_free is None or theirs is None or evidence.flaw(fault_free):
        return np.zeros(0, np.int64)
    return np.unique(np.array([save.step for save in (theirs.whole if run.checkpoints else theirs.seen)], np.int64))


def _after_the_fault(run: Timeline, saves: Saves, due: Ints, disturbed: Sequence[Window]) -> Bools:
    """Per save that was due in peace after the first disturbance (in a run without one: at all): was it made? It was
    not due while another one was being written: trainers wait for that, or leave it out."""
    interval = float(np.median(np.diff(due))) if len(due) > 1 else float(due[0])
    committed = np.append(saves.steps, np.iinfo(np.int64).max)
    order = np.argsort(run.progress.step, kind="stable")  # rows are in order of time: the last of a step counts
    step, end = run.progress.step[order], run.progress.end[order]
    last = np.append(np.diff(step) > 0, True)[: len(step)]
    step, end = step[last], end[last]
    due = due[(due >= step[0]) & (due <= step[-1])] if len(step) else due[:0]
    if not len(due):
        return np.zeros(0, np.bool_)
    made = committed[np.searchsorted(committed, due - interval / 2)] < due + interval
    begin = end[np.searchsorted(step, due)]
    until = end[np.minimum(np.searchsorted(step, due + interval - 1), len(step) - 1)]
    ended = ((save.begun, save.ended) for save in saves.good if save.begun is not None)
    writing = by_time.union((begun + 1, over + WRITTEN_NS) for begun, over in ended if over is not None)
    in_peace = by_time.quiet(begin, np.maximum(until, begin + 1), disturbed)
    counts = (in_peace & by_time.quiet(begin, begin + 1, writing)) | made
    if disturbed:
        counts &= begin >= disturbed[0][0]
    return np.asarray(made[counts], np.bool_)


SCORES = (PaceScore(), GpusInUse(), ExitTime(), CheckpointRhythm())
