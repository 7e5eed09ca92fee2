"""Checks whether the stored runs of a folder meet the service level objectives of a file."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.campaign.run_store import Store, Wanted
from harness.gate import objectives
from harness.gate.objectives import Answer, Past
from harness.gate.slo_file import RUNS_MIN, Objective, Slo
from harness.judge.verdict import Verdict, merge
from harness.report import run_report

READ_MAX = 5000  # most runs read, the newest first


@dataclass(frozen=True)
class Held:
    """A service level objective, with one result for each bound that the objective sets."""

    objective: Objective
    answers: Sequence[Answer]

    @property
    def verdict(self) -> Verdict:
        return merge(answer.verdict for answer in self.answers)


def hold(slo: Slo, reports: pathlib.Path, wanted: Wanted, now_s: float) -> tuple[list[Held], list[str]]:
    """Returns the results of each objective, and a message for each folder or report that could not be read."""
    store = Store(reports)
    found = [(run.begun_s, report) for run, report in store.judged(wanted, READ_MAX)]
    return [_held(objective, found, now_s) for objective in slo.objectives], store.notes


def _held(objective: Objective, found: Sequence[tuple[float, run_report.Report]], now_s: float) -> Held:
    since_s = now_s - objective.window.s
    scope = objective.waste.scope if objective.waste else "faults"
    runs = [
        _past(at, report, scope)
        for at, report in found
        if at >= since_s
        and (not objective.scenarios or report.scenario in objective.scenarios)
        and (not objective.faults or any(fault.kind in objective.faults for fault in report.faults))
    ]
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


def _past(begun_s: float, report: run_report.Report, scope: str) -> Past:
    time, spent = report.recovery_time, report.wasted_gpu_hours
    return Past(
        report.run_id,
        begun_s,
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
