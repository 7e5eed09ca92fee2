"""Measures step times, checkpoints, resumes and alarms; a scenario may limit each measured value."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.evidence.by_time import healed_at
from harness.evidence.usual import Times
from harness.judge.bounds import MetricBounds
from harness.judge.facts import alarms
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.restarts import in_vain
from harness.judge.facts.saves import Save
from harness.judge.score import Bound, Expectation, S, Score, ScoreResult, line, shown_ns
from harness.judge.verdict import Ground, Kind
from harness.timeline.lookups import NEVER, first_from, grouped
from harness.timeline.save_events import COMMITTED, FAILED, PART
from harness.timeline.sorted_events import CLEAN_CODES
from harness.timeline.timeline import FaultRecord, Timeline
from harness.units import counted

QUANTILES = (50, 95, 99)
UNITS: dict[str, Callable[[Any], str]] = {"s": lambda x: f"{x:.3f} s", "%": lambda x: f"{x:.1f} %", "": str}
ROWS = (  # key in `expect:`, figure, unit
    ("step_p50_max", "step_seconds_p50", "s"),
    ("step_p95_max", "step_seconds_p95", "s"),
    ("step_p99_max", "step_seconds_p99", "s"),
    ("detection_max", "detection_seconds_max", "s"),
    ("max_false_alarms", "false_alarms", ""),
    ("max_restarts", "restarts", ""),
    ("max_restarts_without_progress", "restarts_without_progress", ""),
    ("steps_rolled_back_max", "steps_rolled_back", ""),
    ("checkpoint_success_min", "checkpoint_success_percent", "%"),
    ("resume_success_min", "resume_success_percent", "%"),
)


def metrics(evidence: Analysis, bounds: MetricBounds | None) -> ScoreResult:
    values = _steps(evidence.run) | _checkpoints(evidence) | _alarms(evidence)
    vain = in_vain(evidence.run, evidence.work.furthest)
    values["restarts_without_progress"] = vain.restarts if evidence.run.epochs else None
    if bounds is not None and bounds.max_restarts is not None:
        started = Counter(process.rank for process in evidence.run.processes)
        values["restarts"] = max(started.values()) - 1 if started else None
    resumed = [episode.t_regained is not None for episode in evidence.run.episodes]
    values["resume_success_percent"] = 100 * sum(resumed) / len(resumed) if resumed else None
    false = values["false_alarms"] if bounds is None or bounds.max_false_alarms is None else 0
    why = f"{counted(false, 'alarm')} of the trainer that no fault explains, and no bound on that"
    lines = [*_lines(evidence.run, values, bounds, {"restarts_without_progress": vain.words})] if bounds else ()
    return ScoreResult(values, lines, not_judged=[("alarms of the trainer", why)] if false else [])


def _lines(run: Timeline, values: dict[str, Any], bounds: MetricBounds, words: dict[str, str]) -> Iterator[Expectation]:
    for name, figure, unit in ROWS:
        if (allowed := getattr(bounds, name)) is not None:
            if name == "detection_max" and (missed := _unnoticed(run, allowed)):
                yield missed
                continue
            bound = Bound(f"metrics.{name}", UNITS[unit], unit, least=name.endswith("_min"))
            why = "" if values[figure] is None else words.get(figure, "")
            yield bound.line(allowed / S if unit == "s" else allowed, values[figure], why)


def _steps(run: Timeline) -> dict[str, Any]:
    told = Times.of(run)
    taken = told.end - told.begin
    found = {f"step_seconds_p{q}": float(np.percentile(taken, q)) / S if len(taken) else None for q in QUANTILES}
    return found | {"steps_rolled_back": len(run.progress) - len(np.unique(run.progress.step))}


def _together(run: Timeline, saves: Sequence[Save]) -> Iterable[Sequence[Save]]:
    worlds = {row: epoch.world for epoch in reversed(run.epochs) for row in epoch.processes}
    found = list[tuple[tuple[int, int | None, int], Save]]()
    times, current = Counter[tuple[int, int]](), dict[int, tuple[int, int | None, int]]()
    for save in saves:
        if save.begun is not None:
            times[save.step, save.process] += 1
            _, world, _ = current.get(save.step, (0, None, 0))
            current[save.step] = save.step, worlds.get(save.process, world), times[save.step, save.process]
        elif save.how == PART:
            continue
        found.append((current.setdefault(save.step, (save.step, None, 0)), save))
    return grouped(found).values()


def _checkpoints(evidence: Analysis) -> dict[str, Any]:
    run, done, bad = evidence.run, 0, 0
    lived = {index for index, process in enumerate(run.processes) if process.exit_code in CLEAN_CODES}
    for mine in _together(run, evidence.saves.all):
        committed, failed = ({save.process for save in mine if save.how == how} for how in (COMMITTED, FAILED))
        ceased = not committed and lived.issuperset(save.process for save in mine if save.begun is not None)
        bad += bool(failed - committed) or ceased
        done += bool(committed) and failed <= committed
    success = 100 * done / (done + bad) if done + bad else None
    return {"checkpoints_committed": done, "checkpoints_failed": bad, "checkpoint_success_percent": success}


def _alarms(evidence: Analysis) -> dict[str, Any]:
    run, ends = evidence.run, _episode_ends(evidence.run)
    detect = [taken for fault in run.faults if (taken := _detection(run, fault, ends)) is not None]
    return {
        "false_alarms": len(alarms.false_alarms(run, evidence.disturbances, evidence.spikes)),
        "detection_seconds_max": max(detect) / S if detect else None,
    }


def _episode_ends(run: Timeline) -> Mapping[str, Sequence[int]]:
    ended = sorted((episode.end, fault) for episode in run.episodes for fault in episode.faults)
    return grouped((fault, at) for at, fault in ended)


def _detection(run: Timeline, fault: FaultRecord, ends: Mapping[str, Sequence[int]]) -> int | None:
    if fault.injected is None:
        return None
    at, over = int(np.searchsorted(run.evidence, fault.injected)), first_from(ends.get(fault.id, ()), fault.injected)
    if at == len(run.evidence) or run.evidence[at] > (healed_at(run, fault) if over == NEVER else over):
        return None
    return int(run.evidence[at]) - fault.injected


def _unnoticed(run: Timeline, allowed: int) -> Expectation | None:
    for fault in run.faults:
        if fault.injected is None or fault.benign:
            continue
        ends = run.progress.end[run.progress.end > fault.injected]
        edges = np.concatenate([[fault.injected], ends, [run.end]])
        stood = np.flatnonzero((np.diff(edges) > allowed) & (edges[:-1] <= healed_at(run, fault)))
        since = int(edges[stood[0]]) if len(stood) else NEVER
        noticed = (run.evidence >= fault.injected) & (run.evidence <= since + allowed)
        if since < NEVER and not noticed.any():
            limit = shown_ns(allowed)
            why = f"nobody in the job noticed `{fault.id}` within {limit}, though no step was done for so long"
            late = Ground(Kind.DURATION, of=(since, since + allowed))  # a busy host may have delayed the alarm
            grounds = Ground(Kind.FAULTS), Ground(Kind.ABSENCE), late
            return line("metrics.detection_max", f"≤ {limit}", "never", why, *grounds, unit="s")
    return None


SCORES = (Score("metrics", 99, metrics, section="metrics"),)
