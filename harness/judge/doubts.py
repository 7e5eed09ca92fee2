"""The doubts: what spoils which evidence, and where. The only place that makes of a failure something unknown.

A claim names the ground that it stands on (`harness.judge.verdict`). A row here spoils one kind of ground, for one
reason. A failure on spoilt ground is inconclusive. To excuse a new kind of history, add a row; no question knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.envelope import ENOUGH
from harness.judge.facts.reported import blindness
from harness.judge.facts.usual import OTHERS_MOST, Degraded, Pace, others_share
from harness.judge.verdict import Claim, Doubt, Figure, Finding, Ground, Kind, Verdict
from harness.log.line_numbers import LineGap
from harness.timeline.lineage import NEVER
from harness.timeline.sorted_events import first_strike
from harness.timeline.timeline import Episode, Timeline
from harness.units import counted, format_duration

HOST_FACTOR = 1.4  # beyond the bound: so much slower a host may become meanwhile that others use as well
LACKING = "the log lacks lines there, by their numbers"
OTHERS_MAX = 0.15  # of all CPUs of the host: so much more than usual may go to other programs


@dataclass(frozen=True)
class Row:
    """`why` says in words what spoils this ground in this run; an empty text: nothing does. `alone`: these words stand
    in place of the claim's own, which are about nothing then. `either_way`: they spoil what is good as well."""

    doubt: Doubt
    spoils: Kind
    why: Callable[[Analysis, Ground], str]
    alone: bool = False
    either_way: bool = False


def weighed(claim: Claim, evidence: Analysis) -> Finding | None:
    """What a claim comes to; `None` where nothing hangs on it."""
    if claim.good:
        return Finding(Verdict.PASS, claim.words, claim.code)
    if claim.good is None:
        return Finding(Verdict.INCONCLUSIVE, claim.words, claim.code, claim.doubt)
    if found := spoilt(claim.rests_on, evidence):
        if claim.idle and found.doubt is Doubt.TORN_TAIL:  # lost with its process, and rolled back
            return None
        return Finding(Verdict.INCONCLUSIVE, found.after(claim.words), claim.code, found.doubt)
    return Finding(Verdict.INVALID if claim.of_a_fault else Verdict.FAIL, claim.words, claim.code)


@dataclass(frozen=True)
class Spoilt:
    """Which doubt holds, and why in words."""

    doubt: Doubt
    why: str
    alone: bool

    def after(self, words: str) -> str:
        return self.why if self.alone else f"{words}; {self.why}"


def spoilt(grounds: Sequence[Ground], evidence: Analysis, good: bool = False) -> Spoilt | None:
    """By the first doubt that holds for one of these grounds. `good`: what is claimed is."""
    for row in TABLE:
        for ground in grounds if row.either_way or not good else ():
            if row.spoils is ground.kind and (why := row.why(evidence, ground)):
                return Spoilt(row.doubt, why, row.alone)
    return None


def _lacks_lines(evidence: Analysis, ground: Ground, full_disk: bool = False) -> bool:
    """Whether the numbers of lines tell that so many are missing there: of each process that would have told them, or
    of anybody where that is not known. Those without numbers are left out."""
    run, rows = evidence.run, _tellers(evidence, ground)
    numbered = [run.processes[row].gaps for row in rows or range(len(run.processes))]
    missing = [
        sum(gap.lines for gap in gaps if gap.full_disk >= full_disk and _may_hold(gap, ground)) >= ground.lines
        for gaps in numbered
        if gaps is not None
    ]
    return (all if rows else any)(missing)


def _tellers(evidence: Analysis, ground: Ground) -> Sequence[int]:
    """Of steps that nobody told: the processes that told others before and after them."""
    if ground.processes or not ground.steps:
        return ground.processes
    first, last = ground.steps[0], ground.steps[-1]
    jumps = ((each.process, jump) for each in evidence.run.stretches for jump in each.jumps)
    return sorted({process for process, (before, after) in jumps if before < last and after > first})


def _may_hold(gap: LineGap, ground: Ground) -> bool:
    if ground.steps:
        return gap.may_hold(ground.steps[0], ground.steps[-1])
    return ground.since is None or gap.until > ground.since


def _lines_dropped(evidence: Analysis, ground: Ground) -> str:
    """A full disk took as many lines as are missed, of each process that would have told."""
    run = evidence.run
    if _all_numbered(run):
        return f"{run.dropped} events were lost to a full disk" if _lacks_lines(evidence, ground, True) else ""
    known = [run.processes[row].dropped for row in ground.processes]
    lost = all(dropped >= ground.lines for dropped in known) if known else run.dropped
    return f"{run.dropped} events were lost to a full disk" if lost else ""


def _lines_lost(evidence: Analysis, ground: Ground) -> str:
    """Numbers tell which lines are missing. A process that does not number them may have lost a single one."""
    run = evidence.run
    older = tuple(row for row in ground.processes if run.processes[row].gaps is None)
    numbered = len(older) < len(ground.processes) or _all_numbered(run)
    if numbered and not _lacks_lines(evidence, ground):
        return ""
    return _done_all_the_same(evidence, replace(ground, processes=older)) if older else LACKING * numbered


def _all_numbered(run: Timeline) -> bool:
    return bool(run.processes) and all(each.gaps is not None for each in run.processes)


def _done_all_the_same(evidence: Analysis, ground: Ground) -> str:
    """One line of a process is not there. It had the time for that step, and holds what the others hold later on."""
    run, (order, begins) = evidence.run, evidence.run.rows_by_process
    if len(ground.steps) != 1 or not ground.processes or any(evidence.jumps[row] > 1 for row in ground.processes):
        return ""
    (hole,), (by_step, steps) = ground.steps, evidence.rows_by_step
    others = by_step[np.searchsorted(steps, hole) : np.searchsorted(steps, hole, "right")]
    for process in ground.processes:
        mine = order[begins[process] : begins[process + 1]]
        after = int(np.searchsorted(run.steps.step[mine], hole))
        if after == len(mine):
            return ""
        of = run.processes[process]
        free = int(run.steps.end[mine[after - 1]]) if after else of.restored or of.rendezvous or of.started
        peers = others[run.steps.epoch[others] == run.steps.epoch[mine[after]]]
        took = (run.steps.end[peers] - run.steps.begin[peers]).min(initial=NEVER)
        if run.steps.begin[mine[after]] - free < took / 2 or not run.steps.weights[mine[after:]].any():
            return ""
    right = evidence.last_apart <= hole
    return "its time was spent, and the weights are right afterwards: a line may be lost" if right else ""


def _lost_with_their_process(evidence: Analysis, ground: Ground) -> str:
    """The last lines of a process that a fault took never came into the log."""
    run = evidence.run
    if ground.since is not None and ground.processes:
        taken = (evidence.taken[row] + run.uncertainty_ns for row in ground.processes)
        return "the log of a killed rank ends before it" if all(ground.since <= at for at in taken) else ""
    absent = set() if ground.processes else set(ground.steps)
    last = absent and all(step in evidence.seams and step - 1 not in absent for step in absent)
    return "its event was lost when its workers died" if last else ""


def _saved_all_the_same(evidence: Analysis, ground: Ground) -> str:
    """Not all logs come to the last step or to their end, but the harness itself saw a save of it."""
    run, last = evidence.run, evidence.run.planned_steps
    if run.finished or not any(each.step == last for each in evidence.saves.store.seen):
        return ""
    workers = [run.processes[row] for epoch in run.epochs[-1:] for row in epoch.processes]
    told = last in run.steps.step and any(worker.gaps != () for worker in workers)
    lost = told or any(worker.left is None for worker in workers)
    return f"but the harness saw a save of step {last}: lines may be lost" if lost else ""


def _steps_of_a_restarted_run(evidence: Analysis, ground: Ground) -> str:
    """A job whose steps nobody plans does as many as its fault-free run. A trainer that ends well, and is started again
    because a peer crashed on its way out, may do one more."""
    usual = evidence.fault_free
    if usual is None or len(usual.epochs) < 2 or usual.reached_step != evidence.run.planned_steps:
        return ""
    return "but how many there are is known from a fault-free run that started again"


def _blind(evidence: Analysis, ground: Ground) -> str:
    why = blindness(evidence.run, evidence.fault_free)
    return f"not judged: {why}" if why else ""


def _other_rehearsal(evidence: Analysis, ground: Ground) -> str:
    other = evidence.run.beside.other_losses
    then = "changes what the job computes from there on: rehearse it on another day, or after this one"
    return f"rehearsal {other} {then}" if other else ""


def _few_repeats(evidence: Analysis, ground: Ground) -> str:
    band = evidence.envelope
    if isinstance(band, str) or band.runs >= ENOUGH:
        return ""
    shows = "shows" if band.runs == 1 else "show"
    return f"{counted(band.runs, 'fault-free run')} {shows} how far rounding takes a run, and {ENOUGH} are needed"


def _sizes_unknown(evidence: Analysis, ground: Ground) -> str:
    band, counts = evidence.envelope, [epoch for epoch in evidence.run.epochs if epoch.kept >= epoch.first]
    unknown = {int(epoch.size) for epoch in counts} - (frozenset() if isinstance(band, str) else band.sizes)
    return f"no fault-free run had {min(unknown)} ranks" if unknown else ""


def _scatter(evidence: Analysis, ground: Ground) -> str:
    comparison = evidence.comparison
    gap, scatter = (comparison.final_gap_percent, comparison.final_scatter_percent) if comparison else (None, 0.0)
    told = gap is not None and abs(gap) - scatter <= ground.bound
    return f"such gaps scatter by ± {scatter:.2g} % here: train longer, or allow a larger gap" if told else ""


def _order_unproven(evidence: Analysis, ground: Ground) -> str:
    unproven = evidence.consumed is not None and evidence.consumed.unproven
    return "nothing shows that the order is the same in every run" if unproven else ""


def _given_up_before(evidence: Analysis, ground: Ground) -> str:
    run = evidence.run
    early = run.outcome == "aborted" and first_strike(run.faults) == NEVER
    return "the run was aborted before any fault had struck" if early and isinstance(ground.of, Episode) else ""


def _slow_before(evidence: Analysis, ground: Ground) -> str:
    slow = ground.of
    if not isinstance(slow, Degraded) or slow.before is None:
        return ""
    text = f"a step took {slow.before:.2f} × the time of the fault-free runs already before {slow.fault} struck"
    return f"{text}: its usual speed is not known (the host may have been busy)"


def _of_pace(why: str, holds: Callable[[Pace, float], bool]) -> Callable[[Analysis, Ground], str]:
    """Doubts of a pace beside its bound: `why`, written with what the pace holds."""

    def told(evidence: Analysis, ground: Ground) -> str:
        pace = ground.of
        return why.format(**vars(pace)) if isinstance(pace, Pace) and holds(pace, ground.bound) else ""

    return told


def _now_and_then(pace: Pace, bound: float) -> bool:
    return pace.was_slow(bound) or (pace.is_slow(bound) and pace.best <= pace.allowed(bound))


def _busy_host(pace: Pace, bound: float, others: float = 0) -> bool:
    """The job has what others leave of the CPUs, and waits for the rank that has least of them."""
    host = max(pace.worst, HOST_FACTOR) / max(1 - others, 0.01) ** 2
    return pace.is_slow(bound) and pace.at_least <= pace.allowed(bound) * host


def _other_programs(pace: Pace, bound: float) -> bool:
    return pace.others > OTHERS_MAX and _busy_host(pace, bound, pace.others)


_OTHERS = "other programs took {others:.0%} more of the host's CPUs then"
_FASTER_BEFORE = "the fault-free run was much slower than this run before its first fault"


def _host_taken(evidence: Analysis, ground: Ground) -> str:
    others = others_share(evidence.run, evidence.run.begin, evidence.run.end)
    return f"other programs took {others:.0%} of the host's CPUs" if others > OTHERS_MOST else ""


def _cut_short(evidence: Analysis, ground: Ground) -> str:
    """A run that was stopped early cannot say that recovery would have taken longer than it was given."""
    if not isinstance(ground.of, Figure) or ground.of.is_over or ground.of.value > ground.bound:
        return ""
    taken = format_duration(round(ground.of.value))
    return f"the run ended {taken} into the recovery" if evidence.run.outcome in (None, "interrupted") else ""


def _stopped(evidence: Analysis, ground: Ground) -> str:
    """A rehearsal that people stopped or skipped did not come to what it was meant to show."""
    cut = evidence.run.beside.cut_short
    return f"it was {cut}, so this proves nothing" if cut else ""


def _clocks(evidence: Analysis, ground: Ground) -> str:
    figure = ground.of
    if not isinstance(figure, Figure) or not figure.is_over or abs(figure.value - ground.bound) >= figure.margin:
        return ""
    return f"the clocks are only known to within {format_duration(evidence.run.uncertainty_ns)}"


TABLE: Sequence[Row] = (
    Row(Doubt.BLIND, Kind.STEPS, _blind, alone=True),
    Row(Doubt.TORN_TAIL, Kind.ABSENCE, _lost_with_their_process),
    Row(Doubt.LINES_DROPPED, Kind.ABSENCE, _lines_dropped),
    Row(Doubt.LINE_LOST, Kind.ABSENCE, _lines_lost),
    Row(Doubt.LINE_LOST, Kind.REACHED, _saved_all_the_same),
    Row(Doubt.FAULT_FREE_RESTARTED, Kind.REACHED, _steps_of_a_restarted_run),
    Row(Doubt.OTHER_REHEARSAL, Kind.LOSSES, _other_rehearsal),
    Row(Doubt.NOTHING_STRUCK, Kind.DURATION, _given_up_before, alone=True),
    Row(Doubt.SLOW_BEFORE, Kind.DURATION, _slow_before, alone=True),
    Row(
        Doubt.NO_SAME_SIZE,
        Kind.DURATION,
        _of_pace("no fault-free run had as many ranks", lambda pace, bound: pace.is_slow(bound) and not pace.known),
    ),
    Row(
        Doubt.NOT_ALL_THE_TIME, Kind.DURATION, _of_pace("not all the time: the host may have been busy", _now_and_then)
    ),
    Row(Doubt.HOST_BUSY, Kind.DURATION, _of_pace("a busy host could also explain it", _busy_host)),
    Row(Doubt.OTHER_PROGRAMS, Kind.DURATION, _of_pace(_OTHERS, _other_programs)),
    Row(Doubt.HOST_TAKEN, Kind.DURATION, _host_taken),
    Row(Doubt.FAULT_FREE_SLOW, Kind.DURATION, _of_pace(_FASTER_BEFORE, Pace.was_faster), alone=True),
    Row(Doubt.RUN_CUT_SHORT, Kind.DURATION, _cut_short, alone=True),
    Row(Doubt.REHEARSAL_STOPPED, Kind.STEPS, _stopped),
    Row(Doubt.CLOCKS, Kind.DURATION, _clocks, alone=True, either_way=True),
    Row(Doubt.NEVER_THE_SAME, Kind.BITS, lambda evidence, ground: evidence.never_the_same, alone=True),
    Row(
        Doubt.NOT_AS_ASKED, Kind.BAND, lambda evidence, ground: evidence.resumed_elsewhere, alone=True, either_way=True
    ),
    Row(Doubt.FEW_REPEATS, Kind.BAND, _few_repeats),
    Row(Doubt.NO_BAND, Kind.BAND, _sizes_unknown),
    Row(Doubt.SCATTER, Kind.GAP, _scatter),
    Row(Doubt.ORDER_UNPROVEN, Kind.ORDER, _order_unproven),
)
