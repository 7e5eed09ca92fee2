"""Recovery time: from the last step before progress stopped until it passes the furthest step before.

Measured from step events alone, so that it means the same for any trainer. Its phases are segments that
partition the time, so they add up to it exactly. A fault that only slows the job is measured from the fault
until step time is back in the band of the fault-free run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from harness.judge import pace
from harness.judge.codes import Doubt
from harness.judge.facts import slowdown, tells
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.slowdown import Degraded
from harness.judge.score import Bounds, DurationNs, Expectation, Finding, S, Score, ScoreResult, Verdict
from harness.timeline.phases import phase_words
from harness.timeline.timeline import PHASES, Episode, Timeline
from harness.units import counted, format_duration

Phase = Literal[
    "interrupted_step",
    "detect",
    "drain",
    "teardown",
    "reschedule",
    "startup",
    "rendezvous",
    "restore",
    "first_step",
    "recompute",
]


class RecoveryBounds(Bounds):
    """`max`: progress regained; `first_step_max`: first new step; `phases`: each phase, summed per episode."""

    max: DurationNs | None = None
    first_step_max: DurationNs | None = None
    phases: Mapping[Phase, DurationNs] = {}


class RecoveryTime(Score):
    name = "recovery_time"
    order = 10
    Bounds = RecoveryBounds

    def score(self, evidence: Analysis, bounds: RecoveryBounds | None) -> ScoreResult:
        run = evidence.run
        slow = evidence.degraded
        longest = max(run.episodes, key=lambda e: (e.t_regained is None, e.end - e.t_stop), default=None)
        slowest = max(slow, key=lambda d: (not d.recovered, d.end - d.begin), default=None)
        values: dict[str, Any] = {"seconds": None, "first_step_seconds": None, "phases": {}}
        if longest is not None:
            values = {key: value for key, value in _values(run, longest).items() if key in values}
        elif slowest is not None and slowest.recovered:
            values["seconds"] = (slowest.end - slowest.begin) / S
        values |= {"episodes": [_values(run, episode) for episode in run.episodes]}
        values |= {"degraded": [_degraded_values(run, interval) for interval in slow]}
        if bounds is None:
            return ScoreResult(values)
        mine = [interval for interval in slow if interval.fault not in run.beside.faults]
        lines = _expectations(evidence, bounds, mine, _unmeasured(evidence))
        return ScoreResult(values, lines, summary=_summary(run, longest, slowest))


def phase_sums(episode: Episode) -> dict[str, int]:
    """Nanoseconds per phase, in the order in which phases usually come."""
    sums = {phase: sum(s.end - s.begin for s in episode.segments if s.phase == phase) for phase in PHASES}
    return {phase: amount for phase, amount in sums.items() if amount}


def _values(run: Timeline, episode: Episode) -> dict[str, Any]:
    regained, first = episode.t_regained, episode.t_first
    return {
        "t_stop": (episode.t_stop - run.begin) / S,
        "seconds": None if regained is None else (regained - episode.t_stop) / S,
        "first_step_seconds": None if first is None else (first - episode.t_stop) / S,
        "furthest_step": episode.furthest_step,
        "faults": list(episode.faults),
        "phases": {phase: amount / S for phase, amount in phase_sums(episode).items()},
    }


def _degraded_values(run: Timeline, interval: Degraded) -> dict[str, Any]:
    return {
        "fault": interval.fault,
        "t_begin": (interval.begin - run.begin) / S,
        "seconds": (interval.end - interval.begin) / S,
        "recovered": interval.recovered,
        "slowdown": interval.factor,
        "slowdown_before": interval.before,
    }


def _summary(run: Timeline, longest: Episode | None, slowest: Degraded | None) -> str:
    if longest is not None and longest.t_regained is not None:
        more = f", the longest of {len(run.episodes)} recoveries" if len(run.episodes) > 1 else ""
        return f"recovered in {format_duration(longest.t_regained - longest.t_stop)}{more}"
    if longest is not None or slowest is None:
        return ""
    if not slowest.recovered:
        return f"{_still(slowest)} at the end"
    return f"back to its usual speed {format_duration(slowest.end - slowest.begin)} after the fault"


class _Span(NamedTuple):
    length: int
    ended: bool
    why: str  # it did not end
    doubt: str = ""  # why nothing follows from its length
    code: str = ""  # of the doubt


def _expectations(
    evidence: Analysis, bounds: RecoveryBounds, slow: Sequence[Degraded], unmeasured: str
) -> list[Expectation]:
    run = evidence.run
    lines, doubt = [], _given_up_before(run)
    if bounds.max is not None:
        spans = [_Span(*_span(run, e, e.t_regained), _stuck(run, e), doubt, Doubt.NOTHING_STRUCK) for e in run.episodes]
        busy = _busy_host(evidence) if any(not d.recovered for d in slow) else ""
        spans += [
            _Span(d.end - d.begin, d.recovered, f"{d.fault}: {_still(d)}", d.doubt or busy, _code(d)) for d in slow
        ]
        lines.append(_line("recovery_time.max", spans, bounds.max, evidence, unmeasured))
    if bounds.first_step_max is not None:
        spans = [_Span(*_span(run, e, e.t_first), _stuck(run, e), doubt, Doubt.NOTHING_STRUCK) for e in run.episodes]
        spans += [_Span(_standstill(run, d), True, "", d.doubt, _code(d)) for d in slow]
        lines.append(_line("recovery_time.first_step_max", spans, bounds.first_step_max, evidence, unmeasured))
    for phase, bound in bounds.phases.items():
        spans = [
            _Span(phase_sums(e).get(phase, 0), e.t_regained is not None, _stuck(run, e), doubt, Doubt.NOTHING_STRUCK)
            for e in run.episodes
        ]
        why = unmeasured or ("" if run.episodes else "progress slowed but never stopped, so no phase was measured")
        why = why or tells.unmeasured_phase(run, phase)
        lines.append(_line(f"recovery_time.phases.{phase}", spans, bound, evidence, why))
    return lines


def _code(interval: Degraded) -> Doubt:
    return Doubt.SLOW_BEFORE if interval.doubt else Doubt.HOST_BUSY


def _given_up_before(run: Timeline) -> str:
    """Why nothing follows from the outages of a run that was aborted before any fault had struck."""
    early = run.outcome == "aborted" and all(fault.injected is None for fault in run.faults)
    return "the run was aborted before any fault had struck" if early else ""


def _busy_host(evidence: Analysis) -> str:
    """Why a job that is slower to its end may be healthy all the same, by the rule of `pace`, or an empty text."""
    found = pace.measure(evidence)
    if isinstance(found, str):
        return ""
    judged = pace.judge(found, pace.SLOWDOWN_MAX)
    return judged.text if judged.verdict is Verdict.INCONCLUSIVE else ""


def _standstill(run: Timeline, interval: Degraded) -> int:
    """The longest time without a step in it: a job that stood still in place needed so long for its next one."""
    rows = np.flatnonzero((run.progress.end > interval.begin) & (run.progress.end <= interval.end))
    rows = rows[rows > 0]
    return int((run.progress.end[rows] - run.progress.end[rows - 1]).max(initial=0))


def _still(interval: Degraded) -> str:
    return f"still {interval.factor:.2f} times slower"


def _span(run: Timeline, episode: Episode, end: int | None) -> tuple[int, bool]:
    return ((run.end if end is None else end) - episode.t_stop, end is not None)


def _stuck(run: Timeline, episode: Episode) -> str:
    """Why an episode without an end has none: the phase it was given up in, or the longest, by its sum, of a job that
    died."""
    text = f"never recovered after step {episode.furthest_step}"
    if not episode.segments:
        return f"{text}: no step came after"
    last = episode.segments[-1]
    if run.aborted is not None:
        return f"{text}: at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}"
    starts = Counter(process.rank for process in run.processes if process.started >= episode.t_stop)
    tries = f"{counted(max(starts.values()), 'restart')} failed, " if starts else ""
    longest, spent = max(phase_sums(episode).items(), key=lambda item: item[1], default=(last.phase, 0))
    return f"{text}: {tries}longest phase {phase_words(longest)} ({format_duration(spent)})"


def _line(name: str, spans: list[_Span], bound: int, evidence: Analysis, unmeasured: str) -> Expectation:
    """The worst of `spans` against the bound; one of which nothing follows only if no other is too long."""
    text = f"≤ {format_duration(bound)}"
    numbers: dict[str, Any] = {"bound_value": bound / S, "unit": "s"}
    if not spans and unmeasured:
        return Expectation(name, text, "—", Verdict.INCONCLUSIVE, unmeasured, doubt=Doubt.UNMEASURED, **numbers)
    if not spans:
        return Expectation(name, text, "0 s", Verdict.PASS, share=0.0, observed_value=0.0, **numbers)
    worst = max(spans, key=lambda s: (not s.doubt and (not s.ended or s.length > bound), not s.ended, s.length))
    length, ended, why, doubt, code = worst
    observed = format_duration(length) if ended else f"> {format_duration(length)}, not over"
    numbers["observed_value"] = length / S if ended else None
    if doubt and (not ended or length > bound):
        return Expectation(name, text, observed, Verdict.INCONCLUSIVE, doubt, doubt=code, **numbers)
    if not ended:
        never = _never(evidence, why, length, bound)
        return Expectation(name, text, observed, *never[:2], doubt=never.doubt, **numbers)
    if abs(length - bound) < 2 * evidence.run.uncertainty_ns:  # its begin and its end may be of two hosts
        doubt = f"the clocks are only known to within {format_duration(evidence.run.uncertainty_ns)}"
        return Expectation(name, text, observed, Verdict.INCONCLUSIVE, doubt, doubt=Doubt.CLOCKS, **numbers)
    if length > bound:
        reason = f"{observed} is more than {format_duration(bound)}"
        return Expectation(
            name, text, observed, Verdict.FAIL, reason, share=length / bound if bound else None, **numbers
        )
    if unmeasured:
        return Expectation(name, text, observed, Verdict.INCONCLUSIVE, unmeasured, doubt=Doubt.UNMEASURED, **numbers)
    return Expectation(name, text, observed, Verdict.PASS, share=length / bound if bound else None, **numbers)


def _never(evidence: Analysis, why: str, length: int, bound: int) -> Finding:
    """A run that was stopped early cannot say that recovery would have taken longer than it was given."""
    if evidence.run.outcome in (None, "interrupted") and length <= bound:
        return Finding(
            Verdict.INCONCLUSIVE, f"the run ended {format_duration(length)} into the recovery", "", Doubt.RUN_CUT_SHORT
        )
    return Finding(Verdict.FAIL, why, "")


def _unmeasured(evidence: Analysis) -> str:
    """Why nothing can be said about some fault's recovery, or an empty text."""
    run = evidence.run
    named = {name for episode in run.episodes for name in episode.faults}
    injected = [each for each in run.faults if each.injected is not None and each.id not in run.beside.faults]
    if not injected and not run.episodes:
        return "no fault struck, so there was nothing to recover from"
    for fault in injected:
        if fault.kills and fault.id not in named:
            return f"{fault.id} struck, but progress never stopped, so no recovery was measured"
        if fault.id not in named and evidence.fault_free is None:
            return f"{fault.id} did not stop progress, and its slowdown cannot be judged without a fault-free run"
    for fault in evidence.unmeasurable_slowdowns:
        if fault.id in run.beside.faults:
            continue
        return f"{fault.id} did not stop progress, and its slowdown {slowdown.UNMEASURABLE}"
    return ""


SCORES = (RecoveryTime(),)
