"""Recovery time: from the last step before progress stopped until it passes the furthest step before.

Measured from step events alone, so that it means the same for any trainer. Its phases are segments that
partition the time, so they add up to it exactly. A fault that only slows the job is measured from the fault
until step time is back in the band of the fault-free run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from harness.judge.bounds import SLOWDOWN_MAX, RecoveryBounds
from harness.judge.facts import reported, times
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.usual import UNMEASURABLE, Degraded, Pace
from harness.judge.score import Expectation, S, Score, ScoreResult, at_most, line, shown_ns
from harness.judge.verdict import Figure, Ground, Kind
from harness.timeline.phase_names import phase_words
from harness.timeline.timeline import PHASES, Episode, Timeline
from harness.units import counted, format_duration


class RecoveryTime(Score):
    name = "recovery_time"
    order = 10

    def score(self, evidence: Analysis, bounds: RecoveryBounds | None) -> ScoreResult:
        run = evidence.run
        slow = evidence.slowed.measured
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
        "standstill_seconds": _standstill(run, interval) / S,
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
    of: Episode | Degraded
    pace: Pace | None = None  # of a job that never came back to its usual speed


def _expectations(
    evidence: Analysis, bounds: RecoveryBounds, slow: Sequence[Degraded], unmeasured: str
) -> list[Expectation]:
    run = evidence.run
    episodes = [(each, "" if each.t_regained is not None else _stuck(run, each)) for each in run.episodes]
    seen: dict[int | None, int] = {told: at for _, told, at in times.seen_recoveries(run)}  # outweighs what was told
    lines = []
    if bounds.max is not None:
        pace = evidence.pace if any(not d.recovered for d in slow) else None
        at_end = pace if isinstance(pace, Pace) else None
        spans = [_Span(*_span(run, e, seen.get(e.t_regained, e.t_regained)), why, e) for e, why in episodes]
        spans += [_Span(d.end - d.begin, d.recovered, f"{d.fault}: {_still(d)}", d, at_end) for d in slow]
        lines += _lines("recovery_time.max", spans, bounds.max, run, unmeasured)
    if bounds.first_step_max is not None:
        spans = [_Span(*_span(run, e, e.t_first), why, e) for e, why in episodes]
        spans += [_Span(_standstill(run, d), True, "", d) for d in slow]
        lines += _lines("recovery_time.first_step_max", spans, bounds.first_step_max, run, unmeasured)
    for phase, bound in bounds.phases.items():
        spans = [_Span(phase_sums(e).get(phase, 0), e.t_regained is not None, why, e) for e, why in episodes]
        why = unmeasured or ("" if episodes else "progress slowed but never stopped, so no phase was measured")
        why = why or reported.unmeasured_phase(run, phase)
        lines += _lines(f"recovery_time.phases.{phase}", spans, bound, run, why)
    return lines


def _standstill(run: Timeline, interval: Degraded) -> int:
    """The longest time without a step in it: a job that stood still in place needed so long for its next one."""
    first, last = np.searchsorted(run.progress.end, [interval.begin, interval.end], "right")
    return int(np.diff(run.progress.end[max(0, first - 1) : last]).max(initial=0))


def _still(interval: Degraded) -> str:
    return f"still {interval.factor:.2f} × its usual step time"


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
    tries = f"{counted(max(starts.values()), 'restart')} got no further, " if starts else ""
    longest, spent = max(phase_sums(episode).items(), key=lambda item: item[1], default=(last.phase, 0))
    return f"{text}: {tries}longest phase {phase_words(longest)} ({format_duration(spent)})"


def _lines(name: str, spans: Sequence[_Span], bound: int, run: Timeline, unmeasured: str) -> list[Expectation]:
    """Each of `spans` against the bound, the worst first; and that others could not be measured."""
    lines = [_line(name, each, bound, run) for each in sorted(spans, key=lambda span: (span.ended, -span.length))]
    if unmeasured:
        unknown = at_most(name, None, bound / S, _shown, unmeasured, "s")
        seen = {key: getattr(told, key) for told in lines[:1] for key in ("observed", "observed_value")}
        lines.append(replace(unknown, **seen))
    return lines or [at_most(name, 0.0, bound / S, _shown, unit="s")]


def _shown(seconds: float) -> str:
    return shown_ns(seconds * S)


def _line(name: str, span: _Span, bound: int, run: Timeline) -> Expectation:
    length, ended, why, of, pace = span
    observed = format_duration(length) if ended else f"> {format_duration(length)}, not over"
    late = f"{observed} is more than {format_duration(bound)}" if length > bound else ""
    figure = Figure(length, 2 * run.uncertainty_ns, ended)  # its begin and its end may be of two hosts
    grounds = [Ground(Kind.DURATION, of=of), Ground(Kind.DURATION, of=figure, bound=bound)]
    grounds += [Ground(Kind.DURATION, of=pace, bound=SLOWDOWN_MAX)] if pace else []
    grounds += [] if ended else [Ground(Kind.REACHED)]
    return line(
        name,
        f"≤ {format_duration(bound)}",
        observed,
        late if ended else why or "it was not over",
        *grounds,
        share=length / bound if bound and ended else None,
        bound_value=bound / S,
        observed_value=length / S if ended else None,
        unit="s",
    )


def _unmeasured(evidence: Analysis) -> str:
    """Why nothing can be said about some fault's recovery, or an empty text."""
    run = evidence.run
    named = {name for episode in run.episodes for name in episode.faults}
    measured = {interval.fault for interval in evidence.slowed.measured}
    injected = [each for each in run.faults if each.injected is not None and each.id not in run.beside.faults]
    if not injected and not run.episodes:
        return "no fault struck, so there was nothing to recover from"
    for fault in injected:
        if fault.kills and fault.id not in named:
            return f"{fault.id} struck, but progress never stopped, so no recovery was measured"
        if fault.id not in named | measured and evidence.fault_free is None:
            return f"{fault.id} did not stop progress, and its slowdown cannot be judged without a fault-free run"
    for fault in evidence.slowed.unmeasurable:
        if fault.id in run.beside.faults:
            continue
        return f"{fault.id} did not stop progress, and its slowdown {UNMEASURABLE}"
    return ""


SCORES = (RecoveryTime(),)
