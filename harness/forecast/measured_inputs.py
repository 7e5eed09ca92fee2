"""Reads a forecast's measurements from stored runs: recoveries by fault and phase, checkpoint stalls, and how fast a
job is with fewer ranks. Runs that did not pass are refused, because their figures are no sound basis for a forecast."""

from __future__ import annotations

import contextlib
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from harness.campaign.run_store import usable
from harness.campaign.wings import stored_kind_of
from harness.errors import ChaosError, UsageError
from harness.evidence.made_as_asked import command_of
from harness.forecast.failure_rates import CauseRate, RateTable
from harness.forecast.job_model import Cause, Gaps, Job, Origin, Value, default_settings
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.report.run_report import Episode, Report
from harness.report.words import is_number, one_line
from harness.timeline import timeline
from harness.timeline.phase_names import PHASES
from harness.timeline.timeline import Timeline
from harness.units import counted

RUNS_MAX = 1000
RECOVERIES_MAX = 300
RATE_MAX = 1e12  # samples a second
KILLS = ("node_loss", "rank_kill", "process_exception")  # faults that end a process without a notice
SECONDS_MAX = 1e7  # of anything that a run measured
NOT_RECOVERY = ("reschedule", "interrupted_step", "recompute")  # waiting and lost work depend on the job at scale


@dataclass(frozen=True)
class Recovery:
    fault: str  # its kind
    phases: dict[str, float]

    @property
    def detection_s(self) -> float:
        return self.phases.get("detect", 0.0)

    @property
    def restart_s(self) -> float:
        return sum(self.phases.values()) - self.detection_s


@dataclass
class Measured:
    """The measurements of several runs that a forecast uses. `samples_per_gpu_s` holds the samples per GPU and second
    of each run that reports them."""

    runs: list[str] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    samples_per_gpu_s: list[float] = field(default_factory=list)
    places: set[str] = field(default_factory=set)  # `2 GPUs on local`
    commits: set[str] = field(default_factory=set)
    trainer: Any = None  # its name or its command, as in a plan
    passed_over: list[str] = field(default_factory=list)  # newer runs than the one that `last` came to, each with why

    @property
    def phases(self) -> dict[str, float]:
        """Returns the mean seconds of each phase of the measured recoveries, without the detection phase."""
        sums: dict[str, float] = defaultdict(float)
        for name, amount in (item for each in self.recoveries for item in each.phases.items()):
            sums[name] += amount / len(self.recoveries) if name != "detect" else 0.0
        return {name: amount for name, amount in sums.items() if amount}


def _fit(folder: pathlib.Path) -> Report:
    if stored_kind_of(folder):
        raise UsageError(f"{folder.name} is no run of one scenario; name its runs one by one")
    if not (folder / "report.json").exists():
        raise UsageError(f"{folder.name} was not judged yet; judge it with: chaos score {folder}")
    report = run_report.read(folder / "report.json")
    if report.verdict is not Verdict.PASS:
        why = one_line(report.reasons[0] if report.reasons else "no reason is given")
        raise UsageError(f"{folder.name} is no ground for a forecast, its verdict is {report.verdict}: {why}")
    return report


def read_runs(names: Sequence[str], reports: pathlib.Path) -> Measured:
    """Reads a forecast's measurements from stored runs. Raises `UsageError` for a run that is missing, did not pass, or
    is given twice."""
    if len(names) > RUNS_MAX:
        raise UsageError(f"{len(names):,} runs; up to {RUNS_MAX:,} are allowed")
    found = Measured()
    for name in names:
        folder, report = usable(name, reports, _fit, found.passed_over)
        if report.run_id in found.runs:
            raise UsageError(f"{folder.name} is given twice")
        workload = _workload(folder)
        _check_trainer(found, folder, workload.trainer)
        add_report(found, report)
        if _may_shrink(workload):
            with contextlib.suppress(ChaosError, OSError):  # its log is gone; the report is not
                pace = pace_of_smaller_world(timeline.load(folder))
                found.paces += [pace] if pace is not None else []
        if len(found.recoveries) > RECOVERIES_MAX:
            raise UsageError(f"the runs have more than {RECOVERIES_MAX:,} recoveries; name fewer runs")
    return found


def add_report(found: Measured, report: Report) -> None:
    """Adds a run's measurements to those of other runs. Raises `UsageError` for an impossible measurement."""
    found.runs.append(report.run_id)
    found.commits |= {report.commit} if report.commit else set()
    kinds = {fault.id: fault.kind for fault in report.faults}
    for episode in report.recovery_time.episodes:
        if episode.seconds is not None and episode.faults and episode.phases:
            found.recoveries.append(_recovery(report, episode, kinds.get(episode.faults[0], "unknown")))
    stall = report.wasted_gpu_hours.closed_forms.checkpoint_s
    if stall is not None:
        found.stalls.append(_seconds(stall, "a checkpoint's stall", report))
    ranks = report.run.ranks or 0
    if ranks > 0:
        found.places.add(f"{counted(ranks, 'GPU')} on {one_line(report.backend)}")
        rate = report.metrics.get("samples_per_second")
        if is_number(rate) and 0 < rate < RATE_MAX:
            found.samples_per_gpu_s.append(rate / ranks)


def _recovery(report: Report, episode: Episode, kind: str) -> Recovery:
    phases: dict[str, float] = defaultdict(float)
    for name, amount in episode.phases.items():
        if name not in NOT_RECOVERY:
            phases[name if name in PHASES else "other"] += _seconds(amount, f"the phase {one_line(name)}", report)
    return Recovery(kind, phases)


def _seconds(value: float, what: str, report: Report) -> float:
    if not 0 <= value <= SECONDS_MAX:
        raise UsageError(f"{report.run_id}: {what} took {value:g} s; 0 to {SECONDS_MAX:,.0f} s are believed")
    return value


class _Workload(msgspec.Struct):
    trainer: Any = None
    nodes: int = 1
    min_nodes: int | None = None


class _Plan(msgspec.Struct):
    workload: _Workload


def _workload(folder: pathlib.Path) -> _Workload:
    try:
        return msgspec.json.decode(run_report.read_regular(folder / "plan.json"), type=_Plan).workload
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Workload()


def _may_shrink(workload: _Workload) -> bool:
    return workload.min_nodes is not None and workload.min_nodes < workload.nodes


def _check_trainer(found: Measured, folder: pathlib.Path, trainer: Any) -> None:
    told = command_of({"trainer": trainer}) or trainer
    if told is not None and found.trainer not in (None, told):
        raise UsageError(f"{folder.name} ran another trainer than {found.runs[0]}; forecast each trainer by itself")
    found.trainer = found.trainer or told


def pace_of_smaller_world(run: Timeline) -> float | None:
    """Returns the speed per rank at a run's smallest world size, divided by the speed per rank at its largest world
    size, but at most 1. Returns `None` if the run had only one world size."""
    rates: dict[int, float] = {}
    for size in np.unique(run.progress.world_size).tolist():
        rows = np.flatnonzero(run.progress.world_size == size)
        took = np.diff(run.progress.end[rows])[np.diff(run.progress.epoch[rows]) == 0] / 1e9
        of_size = np.isin(run.steps.epoch, [place for place, each in enumerate(run.epochs) if each.size == size])
        batch = run.steps.count[of_size & (run.steps.count > 0)]
        if len(took) and len(batch) and np.median(took) > 0:
            rates[int(size)] = float(np.median(batch) / np.median(took)) / size
    if len(rates) < 2:
        return None
    return min(1.0, max(0.01, rates[min(rates)] / rates[max(rates)]))


def job_of(nodes: int, work_s: float, table: RateTable, gaps: Gaps, found: Measured) -> Job:
    settings = default_settings()
    if found.stalls:
        settings["checkpoint_stall"] = _value(found.stalls, "each run's average checkpoint")
    if found.paces:
        settings["pace"] = _value(found.paces, "samples a second and rank in the smallest and the largest world")
    if found.recoveries:
        source = "all recoveries that were measured"
        settings["restart"] = _value([each.restart_s for each in found.recoveries], source)
    causes = tuple(cause_of(each, table.per_node_day(each), found, settings) for each in table.causes)
    return Job(nodes, work_s, causes, settings, gaps)


def cause_of(cause: CauseRate, per_node_day: float, found: Measured, settings: Mapping[str, Value]) -> Cause:
    """Returns a kind of failure with the detection and restart times that runs measured for the most similar fault. If
    no run had a similar fault, the restart times of all measured recoveries are used. If no run had a similar fault,
    the detection times of killed processes are used, except for silent failures."""
    detection, restart = settings["silent_detection" if cause.silent else "detection"], settings["restart"]
    for kind in cause.faults:
        if alike := [each for each in found.recoveries if each.fault == kind]:
            detection = _value([each.detection_s for each in alike], f"runs with {kind}")
            restart = _value([each.restart_s for each in alike], f"runs with {kind}")
            break
    else:
        none_fits = "no run had a fault that stands for it"
        if found.recoveries:
            restart = replace(restart, origin=Origin.ASSUMED, source=f"{none_fits}: all recoveries that were measured")
        killed = tuple(each.detection_s for each in found.recoveries if each.fault in KILLS)
        if killed and not cause.silent:
            detection = Value(killed, Origin.ASSUMED, f"{none_fits}: all runs in which a process was killed")
    return Cause(
        cause.name,
        per_node_day,
        detection,
        restart,
        counted=cause.count,
        takes_node=cause.node,
        silent=cause.silent,
    )


def _value(values: Sequence[float], source: str) -> Value:
    many = f"{counted(len(values), 'measurement')}"
    spread = f", {many}, deviation {statistics.stdev(values):.2g}" if len(values) > 1 else f", {many}: no scatter known"
    return Value(tuple(values), Origin.MEASURED, source + spread)
