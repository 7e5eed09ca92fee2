"""Is the job whole again after its recovery: as fast, with as many saves, on all its GPUs, and soon over at its end?

*Pace*: see `harness.judge.facts.usual`.

*Standing still*: for so long while nothing disturbed the job that something happened that no fault explains.

*Rhythm of checkpoints*: a save is *due* at each step of which the fault-free run committed a checkpoint. It was *made*
when the run committed one from half an interval before that step until the next one is due; so a late one counts, and
so does a rhythm that has moved. One that was not made counts as missed only where nothing disturbed the job meanwhile.

*GPUs in use*: the job *uses* as many GPUs as its world has ranks, times the GPUs that a rank of the fault-free run has.
It *has* those that were allocated to it until its end; a new one counts from when it can be expected to step: three
times as long after its allocation as the fault-free run took from its first allocation to its first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from harness.emitter import EXIT_LEFT, abnormal
from harness.judge.facts import by_time, reported
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.by_time import Window
from harness.judge.facts.saves import Saves
from harness.judge.facts.usual import FAST_BEFORE, SLOWDOWN_MAX, Pace, Times
from harness.judge.score import Bounds, DurationNs, Expectation, Percent, S, Score, ScoreResult, Verdict, at_most
from harness.judge.verdict import Claim, Code, Ground, Kind, unknown
from harness.timeline.timeline import Bools, Ints, Slot, Timeline
from harness.units import format_duration

STILL_LEAST_NS = 10 * S  # a host may be busy for a moment
STILL_FACTOR = 5  # of the longest time between two steps without a fault: a save, an evaluation
SHARE_SAVES_MIN = 4  # saves that were due, from which on their share counts
SEEN_MIN = 3  # saves that the harness saw without a fault: if it sees none of them now, none was made
WRITTEN_NS = 100_000_000  # so soon after it told the end of a save, who writes it may make another one
TOO_FAST = 1 / 4  # of the usual time nobody needs for the same steps
PATIENCE = 3
EXIT_FACTOR = 3
EXIT_LEAST_NS = 30 * S


class PaceBounds(Bounds):
    """`max_slowdown`: how many times slower than without a fault the job may be once it has recovered."""

    max_slowdown: float = Field(SLOWDOWN_MAX, ge=1)


class PaceScore(Score):
    name = "pace"
    order = 40
    Bounds = PaceBounds
    by_default = "pace"

    def score(self, evidence: Analysis, bounds: PaceBounds | None) -> ScoreResult:
        found, still = evidence.pace, [*_stood_still(evidence), *_told_too_fast(evidence)]
        if isinstance(found, str):
            return ScoreResult({"slowdown": None, "steps": 0}, (), still, not_judged=[(self.name, found)])
        names = ("slowdown", "median", "at_least", "steps", "before", "best", "slowest", "worst")
        values: dict[str, Any] = {name: getattr(found, name) for name in names}
        if bounds is None:
            return ScoreResult(values, (), still)
        line = _pace_line(found, bounds.max_slowdown)
        if line.verdict is Verdict.PASS and (why := _proves_nothing(found, bounds.max_slowdown)):
            return ScoreResult(values, (), still, not_judged=[(self.name, why)])
        return ScoreResult(values, [line], still)


def _pace_line(pace: Pace, bound: float) -> Expectation:
    reason, code = "", ""
    if pace.is_slow(bound) or pace.was_faster(bound):
        reason = f"{_figures(pace)} times slower, the median step {pace.median:.2f} times"
        code = Code.PACE_SLOW
    elif pace.was_slow(bound):
        reason = f"{_figures(pace)} times slower, and {pace.slowest:.2f} times now and then"
        code = Code.PACE_SLOW_AGAIN
    observed = f"{pace.slowdown:.2f} ×, at least {pace.at_least:.2f} ×"
    rests_on = (Ground(Kind.DURATION, of=pace, bound=bound),)
    verdict = Verdict.FAIL if reason else Verdict.PASS
    return Expectation("pace.max_slowdown", f"≤ {bound:g} ×", observed, verdict, reason, code=code, rests_on=rests_on)


def _figures(pace: Pace) -> str:
    took, usual = format_duration(pace.taken), format_duration(pace.usual)
    text = f"{pace.steps} steps after the recovery took {took}, and {usual} in the fault-free run"
    return f"{text}: {pace.slowdown:.2f}"


def _proves_nothing(pace: Pace, bound: float) -> str:
    """Why it proves nothing that the job is not slower than allowed, or an empty text."""
    if not pace.known:
        return "no fault-free run had as many ranks as the job had at the end"
    if pace.at_least > bound and pace.before > bound:
        return f"the job was already {pace.before:.2f} times slower than its fault-free run before the first fault"
    return ""


def _stood_still(evidence: Analysis) -> Iterator[Claim]:
    """The longest time between two steps of one world while nothing disturbed the job, if that was too long."""
    run = evidence.run
    usual = max((int((each.end - each.begin).max(initial=0)) for each in evidence.usual.times), default=None)
    steps = Times.of(run)
    if usual is None or not len(steps.end):
        return
    apart = steps.end - steps.begin
    peace = by_time.quiet(steps.begin, steps.end, evidence.disturbed)
    longest = int(np.where(peace, apart, 0).argmax())
    if peace[longest] and apart[longest] > max(STILL_LEAST_NS, STILL_FACTOR * usual):
        text = f"the job stood still for {format_duration(int(apart[longest]))} after step {steps.after[longest]}"
        longer = f"at most {format_duration(usual)} in the fault-free run"
        yield unknown(Code.JOB_STOOD_STILL, f"{text}, while no fault was at work ({longer})")


def _told_too_fast(evidence: Analysis) -> Iterator[Claim]:
    """After the recovery the steps are told at a pace that the job never had; or faster than before, and the time that
    this saves comes after the last one, where the harness sees the end."""
    pace = evidence.pace
    if isinstance(pace, str) or not pace.known:
        return
    usual = min(1.0, pace.before)
    factor, saved = max(pace.slowdown, pace.median), pace.usual * usual - pace.taken
    taken, without = _exits_ns(evidence)
    hidden = 0 if taken is None or without is None else max(0, taken - without)
    if factor < TOO_FAST * usual or (factor < FAST_BEFORE * usual and 2 * hidden > saved):
        text = (
            f"{_figures(pace)} times as long; the job ended {format_duration(hidden)} later than usual after the last"
        )
        yield unknown(Code.PACE_TOO_FAST, f"{text}: the times that are told are not true")


class RhythmBounds(Bounds):
    """`max_missed`: so many saves in a row may be missing; `min_percent`: of those due, so many are made."""

    max_missed: int = Field(int(abnormal.CHECKPOINT_INTERVALS) - 1, ge=0)
    min_percent: Percent = 60.0


class Rhythm(Score):
    name = "checkpoint_rhythm"
    order = 41
    Bounds = RhythmBounds
    by_default = "rhythm of checkpoints"

    def score(self, evidence: Analysis, bounds: RhythmBounds | None) -> ScoreResult:
        run, fault_free = evidence.run, evidence.fault_free
        values: dict[str, Any] = {"due": None, "missed": None, "missed_in_a_row": None}
        if "checkpoints" not in reported.told(run) and not evidence.saves.seen:
            return ScoreResult(values)  # that they are not told at all is said elsewhere
        usable = fault_free is not None and not evidence.flaw(fault_free)
        theirs = evidence.fault_free_saves if usable else None
        steps = [save.step for save in (theirs.whole if run.checkpoints else theirs.seen)] if theirs else []
        usual: Ints = np.unique(np.array(steps, np.int64))
        if not len(usual):
            return ScoreResult(
                values, not_judged=[(self.by_default, "no fault-free run shows when a checkpoint is due")]
            )
        made = _after_the_fault(run, evidence.saves, usual, evidence.disturbed)
        missed, in_a_row = int((~made).sum()), _longest(~made)
        values = {"due": len(made), "missed": missed, "missed_in_a_row": in_a_row}
        if bounds is None:
            return ScoreResult(values)
        if not run.checkpoints and (made.any() or len(made) < SEEN_MIN or len(set(np.diff(usual))) > 1):
            return ScoreResult(values)  # what is only seen may have been there more often
        if (len(made) < 2 and missed > 0) or not len(made):
            why = f"{len(made) or 'no'} save was due after the recovery, outside faults"
            return ScoreResult(values, not_judged=[(self.by_default, why)])
        none = next((f": one is none, as {each.why}" for each in evidence.saves.none.values()), "")
        return ScoreResult(values, list(_rhythm_lines(made, bounds, none)))


def _rhythm_lines(made: Bools, bounds: RhythmBounds, none: str) -> Iterator[Expectation]:
    missed, in_a_row, due = int((~made).sum()), _longest(~made), len(made)
    text = f"{missed} of {due} checkpoints that the fault-free run made in these steps are missing"

    def line(name: str, bound: str, observed: str, reason: str) -> Expectation:
        verdict = Verdict.FAIL if reason else Verdict.PASS
        rests_on = (Ground(Kind.ABSENCE),)
        return Expectation(f"checkpoint_rhythm.{name}", bound, observed, verdict, reason, rests_on=rests_on)

    reason = f"{text}, {in_a_row} in a row{none}" if in_a_row > bounds.max_missed else ""
    yield line("max_missed", f"≤ {bounds.max_missed} in a row", str(in_a_row), reason)
    if due >= SHARE_SAVES_MIN:
        percent = 100 * (due - missed) / due
        reason = text + none if percent < bounds.min_percent else ""
        yield line("min_percent", f"≥ {bounds.min_percent:.1f} %", f"{percent:.1f} %", reason)


def _after_the_fault(run: Timeline, saves: Saves, due: Ints, disturbed: Sequence[Window]) -> Bools:
    """Per save that was due in peace after the first disturbance (in a run without one: at all): was it made? It was
    not due while another one was being written: trainers wait for that, or leave it out."""
    interval = float(np.median(np.diff(due))) if len(due) > 1 else float(due[0])
    committed = np.append(saves.steps, np.iinfo(np.int64).max)
    step, end = _last_time(run)
    due = due[(due >= step[0]) & (due <= step[-1])] if len(step) else due[:0]
    if not len(due):
        return np.zeros(0, np.bool_)
    made = committed[np.searchsorted(committed, due - interval / 2)] < due + interval
    begin = end[np.searchsorted(step, due)]
    until = end[np.minimum(np.searchsorted(step, due + interval - 1), len(step) - 1)]
    counts = (by_time.quiet(begin, np.maximum(until, begin + 1), disturbed) & ~_under_way(saves, begin)) | made
    if disturbed:
        counts &= begin >= disturbed[0][0]
    return np.asarray(made[counts], np.bool_)


def _under_way(saves: Saves, moments: Ints) -> Bools:
    """Whether a save had begun before, and ended later or just then."""
    ended = ((save.begun, save.ended) for save in saves.good if save.begun is not None)
    writing = by_time.union((begun + 1, end + WRITTEN_NS) for begun, end in ended if end is not None)
    return ~by_time.quiet(moments, moments + 1, writing)


def _last_time(run: Timeline) -> tuple[Ints, Ints]:
    """Each step that was completed, in order, and when it was completed last."""
    order = np.argsort(run.progress.step, kind="stable")  # rows are in order of time: the last of a step counts
    step, end = run.progress.step[order], run.progress.end[order]
    last = np.append(np.diff(step) > 0, True)[: len(step)]
    return step[last], end[last]


def _longest(rows: Bools) -> int:
    """The most `True` in a row."""
    return max((part.stop - part.start for part in by_time.stretches(rows)), default=0)


class UseBounds(Bounds):
    """`max_idle_steps`: fewer than so many steps at the end may be done with a GPU left idle."""

    max_idle_steps: int = Field(10, ge=1)


class GpusInUse(Score):
    name = "gpus_in_use"
    order = 43
    Bounds = UseBounds
    by_default = "GPUs in use"

    def score(self, evidence: Analysis, bounds: UseBounds | None) -> ScoreResult:
        run = evidence.run
        slots = _kept(run)
        per_rank = _gpus_per_rank(evidence.fault_free_runs)
        patience = PATIENCE * max((_first_step_ns(other) for other in evidence.fault_free_runs), default=0)
        idle, at_all = (_idle_steps(run, slots, per_rank, wait) for wait in (patience, 0))
        values = {"gpus_at_the_end": len(slots), "idle_steps": idle}
        if bounds is None:
            return ScoreResult(values)
        why = _uses_not_judged(run, evidence.fault_free_runs, slots)
        if not why and idle < bounds.max_idle_steps <= at_all:
            why = "a GPU may have come too late for the job to use it"
        if why:
            return ScoreResult(values, not_judged=[(self.by_default, why)])
        good = idle < bounds.max_idle_steps
        names = ", ".join(_unused(run, slots)) or "some of them"
        reason = "" if good else f"the job left GPUs idle in its last {idle} steps: {names}"
        verdict = Verdict.PASS if good else Verdict.FAIL
        return ScoreResult(
            values,
            [Expectation("gpus_in_use.max_idle_steps", f"< {bounds.max_idle_steps}", str(idle), verdict, reason)],
        )


def _uses_not_judged(run: Timeline, fault_free_runs: Sequence[Timeline], slots: Sequence[Slot]) -> str:
    if not len(run.progress) or not slots:
        return "the log holds no step or no GPU"
    if not fault_free_runs:
        return "no fault-free run shows how many GPUs the job uses"
    for fault in run.faults:
        if fault.injected is not None and fault.replaced is False:
            return f"{fault.id} brings no replacement, so the job may have to leave GPUs idle"
    return ""


def _kept(run: Timeline) -> list[Slot]:
    """Allocated to the end, and not on a node that said it leaves the job for good."""
    told = {(notice["node"], notice["incarnation"]) for notice in run.notices if notice.get("source") != "peer"}
    left = {
        (exit_["node"], exit_["incarnation"])
        for exit_ in run.exits
        if exit_["rank"] is None and exit_["code"] == EXIT_LEFT
    }
    excluded = {(n["node"], n["incarnation"]) for n in run.notices if n.get("source") == "straggler"} | (told & left)
    return [slot for slot in run.slots if slot.kept and (slot.node, slot.incarnation) not in excluded]


def _gpus_per_rank(fault_free_runs: Sequence[Timeline]) -> float:
    """The most of any fault-free run; 1 without one."""
    found = [
        len(other.slots) / other.epochs[-1].size for other in fault_free_runs if other.epochs and other.epochs[-1].size
    ]
    return max(found, default=1.0)


def _first_step_ns(run: Timeline) -> int:
    allocated = min((slot.allocated for slot in run.slots), default=run.begin)
    return int(run.progress.end[0]) - allocated if len(run.progress) else 0


def _idle_steps(run: Timeline, slots: Sequence[Slot], per_rank: float, patience: int) -> int:
    """How many steps in a row, up to the last one, were done without a GPU that could have had a part in them."""
    ready: Ints = np.sort(np.array([slot.allocated + patience for slot in slots], np.int64))
    has = np.searchsorted(ready, run.progress.begin, side="right")
    busy = np.flatnonzero(has <= run.progress.world_size * per_rank)
    return len(run.progress) - 1 - (int(busy[-1]) if len(busy) else -1)


def _unused(run: Timeline, slots: Sequence[Slot]) -> list[str]:
    """The nodes without a worker in the last world."""
    last = run.epochs[-1].processes if run.epochs else ()
    working = {(run.processes[row].node, run.processes[row].incarnation) for row in last}
    return sorted({slot.node for slot in slots if (slot.node, slot.incarnation) not in working})


class ExitBounds(Bounds):
    """`max`: from the end of the last step until every node's command has ended; by default 3 times what the fault-free
    run takes, and at least 30 s."""

    max: DurationNs | None = Field(None)


class ExitTime(Score):
    name = "exit_time"
    order = 44
    Bounds = ExitBounds
    by_default = "time of the exit"

    def score(self, evidence: Analysis, bounds: ExitBounds | None) -> ScoreResult:
        run = evidence.run
        taken, usual = _exits_ns(evidence)
        seconds = {"seconds": taken, "usual_seconds": usual}
        values = {name: None if ns is None else ns / S for name, ns in seconds.items()}
        if bounds is None:
            return ScoreResult(values)
        limit = bounds.max if bounds.max is not None else max(EXIT_LEAST_NS, EXIT_FACTOR * (usual or 0))
        why = ""
        if taken is not None and taken > limit and usual is None and bounds.max is None:
            why = "no fault-free run shows how long the exit takes"
        elif taken is None and run.outcome == "completed":
            why = "a fault was active until the end, or the ends of the commands were not recorded"
        elif taken is None:
            why = "the job did not finish"
        if why or taken is None:
            return ScoreResult(values, not_judged=[(self.by_default, why)])
        reason = f"the job took {format_duration(taken)} to end after its last step"
        line = at_most("exit_time.max", taken, limit, lambda ns: format_duration(ns) if ns else "0 s", reason)
        return ScoreResult(values, [line])


def _exits_ns(evidence: Analysis) -> tuple[int | None, int | None]:
    """Of the run, and the longest without a fault."""
    without = (_exit_ns(other, by_time.disturbed(other)) for other in evidence.fault_free_runs)
    return _exit_ns(evidence.run, evidence.disturbed), max((ns for ns in without if ns is not None), default=None)


def _exit_ns(run: Timeline, disturbed: Sequence[Window]) -> int | None:
    """From the end of the last step (or of the last disturbance, if that is later) to the end of the last command;
    `None` where no command ended after it."""
    if not len(run.progress) or run.outcome != "completed":
        return None
    last = int(run.progress.end[-1])
    ended = max((exit_["at"] for exit_ in run.exits if exit_["rank"] is None and exit_["at"] >= last), default=None)
    if ended is None:
        return None
    over = max((end for begin, end in disturbed if begin <= ended), default=last)
    return ended - max(last, over) if over <= ended else None


SCORES = (PaceScore(), Rhythm(), GpusInUse(), ExitTime())
