"""Pace: after its recovery the job is as fast as the fault-free run was in the same steps, at the same world size.

`slowdown` is the median of the undisturbed steps after the last recovery over the median of the same steps of the
fault-free runs. A busy host slows a healthy job, too: so it is held against the pace that the run had before the first
fault where that was slower already, and against the worst stretch of the fault-free runs; and a job that was as fast
as ever for some steps in a row can go at its pace. Where the harness saw other programs take the host's CPUs meanwhile,
nothing follows from being slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.judge.codes import Code, Doubt
from harness.judge.facts import undisturbed
from harness.judge.facts.evidence import Evidence
from harness.judge.score import Finding, Verdict
from harness.timeline.timeline import Floats, Ints, Timeline

STEPS_MIN = 10  # undisturbed ones, after the recovery; also the length of a stretch
HOST_FACTOR = 1.4  # beyond the bound: so much slower a host may become meanwhile that others use as well
TAIL_FACTOR = 2  # so many times the bound at the end of the job: it lost its pace again
FAST_BEFORE = 2 / 3  # of the fault-free pace: then that is too slow to tell a slowdown
OTHERS_MAX = 0.15  # of all CPUs of the host: so much more than usual may go to other programs
NORMAL_95 = 1.645  # standard deviations, one-sided
SLOWDOWN_MAX = 1.5  # where the scenario says nothing else


@dataclass(frozen=True)
class Pace:
    """All in multiples of the fault-free pace. `best` and `worst`: of stretches of `STEPS_MIN` steps in a row."""

    steps: int
    slowdown: float  # median after the last recovery
    at_least: float  # the lower end of what that median may be, with 95 % confidence: few steps say little
    best: float  # fastest stretch after it
    tail: float  # the same of the last quarter of these steps
    before: float  # median before the first fault; 1 where too little came before
    worst: float  # slowest stretch without any fault, in this run and in the fault-free ones
    known: bool  # a fault-free run had this world size
    others: float = 0.0  # of the host's CPUs, 0 to 1: what more others took in these steps than without any fault

    def allowed(self, bound: float) -> float:
        return bound * max(1.0, self.before)


@dataclass(frozen=True)
class _Times:
    """Per step of `progress` that follows one of its epoch: time per step, and when."""

    step: Ints
    size: Ints
    begin: Ints
    end: Ints
    taken: Floats


def judge(pace: Pace, bound: float) -> Finding:
    """The verdict and why."""
    allowed = pace.allowed(bound)
    slow = f"{pace.slowdown:.2f} times slower than the fault-free run in the same {pace.steps} steps after the recovery"
    if pace.at_least <= allowed:
        if pace.tail > TAIL_FACTOR * allowed:
            return Finding(
                Verdict.INCONCLUSIVE,
                f"the job was {pace.tail:.2f} times slower again in its last steps",
                Code.PACE_SLOW_AGAIN,
            )
        if pace.before < FAST_BEFORE and pace.slowdown > TAIL_FACTOR * bound * pace.before:
            return Finding(
                Verdict.INCONCLUSIVE,
                "the fault-free run was much slower than this run before its first fault",
                Code.PACE_SLOW,
                Doubt.FAULT_FREE_SLOW,
            )
        return Finding(Verdict.PASS, "", "")
    if not pace.known:
        return Finding(
            Verdict.INCONCLUSIVE, f"{slow}, but no fault-free run had as many ranks", Code.PACE_SLOW, Doubt.NO_SAME_SIZE
        )
    if pace.best <= allowed:
        return Finding(
            Verdict.INCONCLUSIVE,
            f"{slow}, but not all the time: the host may have been busy",
            Code.PACE_SLOW,
            Doubt.NOT_ALL_THE_TIME,
        )
    if pace.at_least <= allowed * max(pace.worst, HOST_FACTOR):
        return Finding(
            Verdict.INCONCLUSIVE, f"{slow}, but a busy host could also explain it", Code.PACE_SLOW, Doubt.HOST_BUSY
        )
    if pace.others > OTHERS_MAX:
        return Finding(
            Verdict.INCONCLUSIVE,
            f"{slow}, but other programs took {pace.others:.0%} more of the host's CPUs then",
            Code.PACE_SLOW,
            Doubt.OTHER_PROGRAMS,
        )
    return Finding(Verdict.FAIL, f"still {slow}", Code.PACE_SLOW)


def measure(evidence: Evidence) -> Pace | str:
    """The pace after the last recovery, or why it is not judged."""
    run = evidence.run
    mine = _times(run)
    disturbed = undisturbed.windows(run)
    if not disturbed:
        return "nothing disturbed the job"
    peace = undisturbed.quiet(mine.begin, mine.end, disturbed)
    after = _last_stretch(mine, peace, disturbed[0][0])
    if after is None:
        return f"fewer than {STEPS_MIN} undisturbed steps came after the recovery"
    references = [_times(other) for other in evidence.fault_free_runs]
    size = int(mine.size[after][0])
    known = [reference for reference in references if (reference.size == size).any()]
    ratios = _ratios(mine, after, known or references, size if known else None)
    if len(ratios) < STEPS_MIN:
        return "no fault-free run shows how long these steps take"
    before = np.flatnonzero(peace & (mine.end <= disturbed[0][0]))
    prior = _ratios(mine, before, references, None)
    return Pace(
        steps=len(ratios),
        slowdown=float(np.median(ratios)),
        at_least=_at_least(ratios),
        best=float(_medians(ratios).min()),
        tail=_at_least(ratios[-max(STEPS_MIN, len(ratios) // 4) :]),
        before=float(np.median(prior)) if len(prior) >= STEPS_MIN else 1.0,
        worst=_worst(prior, known or references),
        known=bool(known),
        others=_others(evidence, mine, after, disturbed[0][0]),
    )


def _others(evidence: Evidence, mine: _Times, after: Ints, struck: int) -> float:
    """The median share of others in these steps, less the highest one before the first fault or in a fault-free run."""
    run = evidence.run
    usual = [
        _load(run, run.begin, struck),
        *(_load(other, other.begin, other.end) for other in evidence.fault_free_runs),
    ]
    return max(0.0, _load(run, int(mine.begin[after][0]), int(mine.end[after][-1])) - max(usual))


def _load(run: Timeline, begin: int, end: int) -> float:
    shares = [each["others"] for each in run.host_load if begin <= each["at"] <= end]
    return float(np.median(shares)) if shares else 0.0


def _times(run: Timeline) -> _Times:
    """A trainer may tell only some of its steps: the time from one to the next is shared among them."""
    progress = run.progress
    rows = np.flatnonzero((np.diff(progress.epoch) == 0) & (np.diff(progress.step) > 0)) + 1
    begin, end = progress.end[rows - 1], progress.end[rows]
    taken = (end - begin) / (progress.step[rows] - progress.step[rows - 1])
    return _Times(progress.step[rows], progress.world_size[rows], begin, end, taken)


def _last_stretch(times: _Times, peace: np.ndarray[Any, Any], since: int) -> Ints | None:
    """Rows of the last undisturbed stretch of one world size after `since` that is long enough."""
    same = np.concatenate([[False], np.diff(times.size) == 0]) if len(times.size) else peace
    for part in reversed(undisturbed.stretches(peace & (times.begin >= since))):
        breaks = np.flatnonzero(~same[part])
        first = part.start + (int(breaks[-1]) if len(breaks) else 0) + undisturbed.SETTLING_STEPS
        if part.stop - first >= STEPS_MIN:
            return np.arange(first, part.stop)
    return None


def _ratios(times: _Times, rows: Ints, references: list[_Times], size: int | None) -> Floats:
    """Time of each row over what the references took for the same step, smoothed over its neighbours: one pause in a
    fault-free run makes nobody fast. `size` `None`: the slowest world size counts."""
    usual = np.zeros(len(rows))
    for reference in references:
        for world in np.unique(reference.size).tolist() if size is None else [size]:
            theirs = np.flatnonzero(reference.size == world)
            if len(theirs) >= STEPS_MIN:
                usual = np.maximum(usual, _same_steps(reference, theirs, times.step[rows]))
    told = usual > 0
    return np.asarray(times.taken[rows][told] / usual[told])


def _same_steps(reference: _Times, rows: Ints, step: Ints) -> Floats:
    """What the reference took for these steps, 0 for steps that it does not tell: the median of the steps around."""
    order = rows[np.argsort(reference.step[rows], kind="stable")]
    theirs, taken = reference.step[order], _medians(reference.taken[order], same_length=True)
    at = np.minimum(np.searchsorted(theirs, step), len(theirs) - 1)
    return np.where(theirs[at] == step, taken[at], 0.0)


def _medians(values: Floats, same_length: bool = False) -> Floats:
    """The median of each `STEPS_MIN` values in a row."""
    if same_length:
        values = np.pad(values, (STEPS_MIN // 2, STEPS_MIN - 1 - STEPS_MIN // 2), mode="edge")
    found: Floats = np.median(np.lib.stride_tricks.sliding_window_view(values, STEPS_MIN), axis=1)
    return found


def _at_least(ratios: Floats) -> float:
    """Below this order statistic the true median lies with a chance of 5 % (the binomial taken as normal)."""
    n = len(ratios)
    return float(np.sort(ratios)[max(0, int(n / 2 - NORMAL_95 * np.sqrt(n) / 2))])


def _worst(prior: Floats, references: list[_Times]) -> float:
    """The slowest stretch without a fault over the usual pace there."""
    found = [1.0]
    if len(prior) >= STEPS_MIN and np.median(prior) > 0:
        found.append(float(_medians(prior).max() / np.median(prior)))
    for reference in references:
        if len(reference.taken) >= STEPS_MIN and np.median(reference.taken) > 0:
            found.append(float(_medians(reference.taken).max() / np.median(reference.taken)))
    return max(found)
