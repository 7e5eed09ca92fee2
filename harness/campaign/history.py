"""Stored runs as moments of a history."""

from __future__ import annotations

import pathlib

from harness.campaign.store import Store, StoredRun, Wanted
from harness.report import model
from harness.report.history import Moment

READ_MAX = 2000  # the newest runs


def moments(reports: pathlib.Path, wanted: Wanted) -> tuple[list[Moment], list[str]]:
    """The judged runs that fit, newest first, and what was passed over, with the reason."""
    store = Store(reports)
    found, notes = [], []
    for run in store.runs(wanted)[:READ_MAX]:
        if run.verdict is None:
            continue
        try:
            found.append(_moment(run, model.read(reports / run.run_id / "report.json")))
        except model.ReportError as error:
            notes.append(str(error))
    return found, store.notes + notes


def _moment(run: StoredRun, report: model.Report) -> Moment:
    return Moment(
        run_id=run.run_id,
        begun_s=run.begun_s,
        scenario=report.scenario,
        profile=report.profile,
        backend=report.backend,
        commit=report.commit or "",
        verdict=report.verdict,
        recovery_s=report.recovery_time.seconds,
        waste_percent=report.wasted_gpu_hours.percent_by_faults,
        headline=report.reasons[0] if report.reasons else "",
    )
