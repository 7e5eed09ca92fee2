"""Fault-free runs: the same workload and seed with no fault, run once and cached by what decides the outcome."""

from __future__ import annotations

import os
import pathlib
import shutil

from harness.backends.contract import Backend
from harness.judge.evidence import CALIBRATION, TWIN
from harness.plan.model import Plan
from harness.run.job import Outcome, execute
from harness.run.observers import SILENT, Observer
from harness.run.stop import StopRequest

CACHE = ".twins"  # as older versions call it; so does the folder of a run's own copy


def ensure_fault_free(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    observer: Observer = SILENT,
    stop: StopRequest | None = None,
) -> tuple[pathlib.Path, Outcome | None]:
    """The folder of a completed run of `plan` (itself without faults), and how it went if it ran now.

    A run that did not complete is not cached: its folder is handed back for the report, with its outcome.
    """
    digest = plan.outcome_digest()
    cached = reports / CACHE / digest
    if (cached / "complete").exists():
        return cached, None
    attempt = reports / CACHE / f"{digest}.{os.getpid()}"
    shutil.rmtree(attempt, ignore_errors=True)
    outcome = execute(plan, attempt, backend, observer, stop)
    if outcome.outcome != "completed":
        return attempt, outcome
    shutil.rmtree(attempt / "checkpoints", ignore_errors=True)
    (attempt / "complete").touch()
    try:
        attempt.rename(cached)
    except OSError:  # another run was faster: both are the same, keep the first
        shutil.rmtree(attempt, ignore_errors=True)
    return cached, outcome


def fault_free_plans(plan: Plan) -> dict[str, Plan]:
    """What `plan` is compared with, by the folder in the run's own: the fault-free run and those for calibration."""
    calibration = {f"{CALIBRATION}{number}": other for number, other in enumerate(_calibration_plans(plan), 1)}
    return {TWIN: plan.without_faults(f"{plan.run_id}-twin"), **calibration}


def forget_fault_free(plan: Plan, reports: pathlib.Path) -> None:
    """Lets the next run of `plan` make its fault-free runs anew. Reports keep the ones they were judged by."""
    for other in fault_free_plans(plan).values():
        shutil.rmtree(reports / CACHE / other.outcome_digest(), ignore_errors=True)


def _calibration_plans(plan: Plan) -> list[Plan]:
    """Fault-free runs at the other world sizes the plan may come to: they tell how far rounding alone drifts."""
    sizes = range(plan.workload.min_nodes, plan.workload.nodes)
    return [plan.without_faults(f"{plan.run_id}-{size}", nodes=size) for size in list(sizes)[:2]]
