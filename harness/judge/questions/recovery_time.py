"""Judges the recovery time: from the last step before an outage until the job does a step that it had not done before.

The recovery time is measured from logged steps alone, so it means the same for each trainer. The phases of a recovery
add up to exactly the recovery time. If a fault only slows the job, the recovery time lasts from the fault until steps
are as fast as in the fault-free run again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from harness.evidence import reported
from harness.evidence.usual import UNMEASURABLE, Degraded, Pace, standstill_ns
from harness.judge.bounds import RecoveryBounds
from harness.judge.facts import times
from harness.judge.facts.analysis import Analysis
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult, line, shown_ns
from harness.judge.thresholds import SLOWDOWN_MAX
from harness.judge.verdict import Figure, Ground, Kind
from harness.timeline.phase_names import phase_words
from harness.timeline.timeline import Episode, Timeline
from harness.units import counted, format_duration


def recovery_time(evidence: Analysis, bounds: RecoveryBounds | None) -> ScoreResult:
    run = evidence.run
    longest = max(run.episodes, key=lambda e: (e.t_regained is None, e.end - e.t_stop), default=None)
    slowest = max(evidence.slowed.measured, key=lambda d: (not d.recovered, d.end - d.begin), default=None)
    taken, summary = None, ""
    if longest is not None and longest.t_regained is not None:
        taken = longest.t_regained - longest.t_stop
        more = f", the longest of {len(run.episodes)} recoveries" if len(run.episodes) > 1 else ""
        summary = f"recovered in {format_duration(taken)}{more}"
    elif longest is None and slowest is not None:
        taken = slowest.end - slowest.begin if slowest.recovered else None
        summary = f"{_still(slowest)} at the end"
        if taken is not None:
            summary = f"back to its usual speed {format_duration(taken)} after the fault"
    values = {"seconds": None if taken is None else taken / S}
    if bounds is None:
        return ScoreResult(values)
    return ScoreResult(values, [*_expectations(evidence, bounds)], summary=summary)


class _Span(NamedTuple):
    length: int
    ended: bool
    why: str  # the reason if the interval did not end
    of: Episode | Degraded
    pace: Pace | None = None  # final pace, if a slowed job never came back to its usual speed


def _expectations(evidence: Analysis, bounds: RecoveryBounds) -> Iterator[Expectation]:
    run, unmeasured = evidence.run, _unmeasured(evidence)
    slow = [each for each in evidence.slowed.measured if each.fault not in run.beside.faults]
    episodes = [(each, "" if each.t_regained is not None else _stuck(run, each)) for each in run.episodes]
    # A recovery that the harness saw outweighs the reported time.
    seen: dict[int | None, int] = {told: at for _, told, at in times.seen_recoveries(run)}
    if bounds.max is not None:
        at_end = evidence.pace if isinstance(evidence.pace, Pace) and not all(d.recovered for d in slow) else None
        spans = [_Span(*_span(run, e, seen.get(e.t_regained, e.t_regained)), why, e) for e, why in episodes]
        spans += [_Span(d.end - d.begin, d.recovered, f"{d.fault}: {_still(d)}", d, at_end) for d in slow]
        yield from _lines("recovery_time.max", spans, bounds.max, run, unmeasured)
    if bounds.first_step_max is not None:
        spans = [_Span(*_span(run, e, e.t_first), why, e) for e, why in episodes]
        spans += [_Span(standstill_ns(run, d), True, "", d) for d in slow]
        yield from _lines("recovery_time.first_step_max", spans, bounds.first_step_max, run, unmeasured)
    for phase, bound in bounds.phases.items():
        spans = [_Span(e.phases_ns.get(phase, 0), e.t_regained is not None, why, e) for e, why in episodes]
        why = unmeasured or ("" if episodes else "progress slowed but never stopped, so no phase was measured")
        why = why or reported.unmeasured_phase(run, phase)
        yield from _lines(f"recovery_time.phases.{phase}", spans, bound, run, why)


def _still(interval: Degraded) -> str:
    return f"still {interval.factor:.2f} × its usual step time"


def _span(run: Timeline, episode: Episode, end: int | None) -> tuple[int, bool]:
    return ((run.end if end is None else end) - episode.t_stop, end is not None)


def _stuck(run: Timeline, episode: Episode) -> str:
    text = f"never recovered after step {episode.furthest_step}"
    if not episode.segments:
        return f"{text}: no step came after"
    last = episode.segments[-1]
    if run.aborted is not None:
        return f"{text}: at the end in {phase_words(last.phase)} for {format_duration(last.end - last.begin)}"
    starts = Counter(process.rank for process in run.processes if process.started >= episode.t_stop)
    tries = f"{counted(max(starts.values()), 'restart')} got no further, " if starts else ""
    longest, spent = max(episode.phases_ns.items(), key=lambda item: item[1], default=(last.phase, 0))
    return f"{text}: {tries}longest phase {phase_words(longest)} ({format_duration(spent)})"


def _lines(name: str, spans: Sequence[_Span], allowed: int, run: Timeline, unmeasured: str) -> list[Expectation]:
    bound = Bound(name, lambda seconds: shown_ns(seconds * S), "s")
    worst_first = sorted(spans, key=lambda span: (span.ended, -span.length))
    lines = [_line(bound, each, allowed, run) for each in worst_first]
    if unmeasured:
        seen = {key: getattr(told, key) for told in lines[:1] for key in ("observed", "observed_value")}
        lines.append(replace(bound.line(allowed / S, None, unmeasured), **seen))
    return lines or [bound.line(allowed / S, 0.0)]


def _line(bound: Bound, span: _Span, allowed: int, run: Timeline) -> Expectation:
    length, ended, why, of, pace = span
    figure = Figure(length, 2 * run.uncertainty_ns, ended)  # begin and end may come from two hosts
    grounds = [Ground(Kind.DURATION, of=of), Ground(Kind.DURATION, of=figure, bound=allowed)]
    grounds += [Ground(Kind.DURATION, of=pace, bound=SLOWDOWN_MAX)] if pace else []
    if ended:
        return bound.line(allowed / S, length / S, "", *grounds)
    most, told = f"≤ {bound.show(allowed / S)}", f"> {format_duration(length)}, not over"
    grounds += [Ground(Kind.REACHED), Ground(Kind.NODES)]
    numbers: dict[str, Any] = {"bound_value": allowed / S, "unit": bound.unit}
    return line(bound.name, most, told, why or "it was not over", *grounds, **numbers)


def _unmeasured(evidence: Analysis) -> str:
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
    unmeasurable = (each.id for each in evidence.slowed.unmeasurable if each.id not in run.beside.faults)
    return next((f"{fault} did not stop progress, and its slowdown {UNMEASURABLE}" for fault in unmeasurable), "")


SCORES = (Score("recovery_time", 10, recovery_time),)
