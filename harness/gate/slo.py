"""Checks whether the stored runs of a folder meet the service level objectives of a file."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.campaign.run_store import ByLog, Store, StoredRun, Wanted
from harness.gate import objectives, stored_runs
from harness.gate.objectives import Answer, Past
from harness.gate.slo_file import RUNS_MIN, Objective, Slo
from harness.judge.verdict import Verdict, merge
from harness.report.run_report import Report

READ_MAX = 5000  # most runs read, the newest first


@dataclass(frozen=True)
class Held:
    objective: Objective
    answers: Sequence[Answer]

    @property
    def verdict(self) -> Verdict:
        return merge(answer.verdict for answer in self.answers)


def hold(slo: Slo, reports: pathlib.Path, wanted: Wanted, now_s: float) -> tuple[list[Held], list[str]]:
    store = Store(reports)
    longest_s = max(objective.window.s for objective in slo.objectives)
    judged, silent = stored_runs.by_logs(store, wanted, READ_MAX, now_s - longest_s)
    return [_held(objective, judged, silent, now_s) for objective in slo.objectives], store.notes


def _held(objective: Objective, judged: Sequence[ByLog], silent: Sequence[StoredRun], now_s: float) -> Held:
    """Counts a run that could not be judged as inconclusive for each objective, because its faults are unknown."""
    since_s = now_s - objective.window.s
    scope = objective.waste.scope if objective.waste else "faults"

    def is_asked(run: StoredRun) -> bool:
        of_scenario = not objective.scenarios or not run.scenario or run.scenario in objective.scenarios
        return run.begun_s >= since_s and of_scenario

    runs = [
        _past(run, report, scope)
        for run, report, _ in judged
        if is_asked(run) and (not objective.faults or any(fault.kind in objective.faults for fault in report.faults))
    ]
    runs += [Past(run.run_id, run.begun_s, Verdict.INCONCLUSIVE, None, None, None) for run in filter(is_asked, silent)]
    answers = []
    least = objective.runs_min or RUNS_MIN
    if objective.success is not None:
        needed = objective.runs_min or objectives.runs_needed(objective.success, RUNS_MIN)
        answers.append(objectives.success(runs, objective.success, needed))
    if objective.recovery_p95 is not None:
        answers.append(objectives.recovery_p95(runs, objective.recovery_p95.s, least))
    if asked := objective.waste:
        burn_since_s = now_s - asked.burn_window.s
        answers.append(objectives.waste(runs, asked.budget, asked.burn_rate_max, burn_since_s, least))
    return Held(objective, answers)


def _past(run: StoredRun, report: Report, scope: str) -> Past:
    time, spent = report.recovery_time, report.wasted_gpu_hours
    return Past(
        run.run_id,
        run.begun_s,
        report.verdict,
        math.inf if report.run.stuck_in else time.seconds,
        spent.gpu_seconds_allocated,
        spent.gpu_seconds_wasted_by_faults if scope == "faults" else spent.gpu_seconds_wasted,
    )


def to_json(held: Sequence[Held]) -> list[dict[str, object]]:
    """Returns the results of all objectives as JSON values, in seconds and percent. A missing measurement is `None`."""
    return [
        {
            "id": each.objective.id,
            "severity": each.objective.severity,
            "verdict": each.verdict.value,
            "answers": [{**vars(answer), "verdict": answer.verdict.value} for answer in each.answers],
        }
        for each in held
    ]
