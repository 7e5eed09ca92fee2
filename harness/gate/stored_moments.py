"""Stored runs as moments of a history."""

from __future__ import annotations

import pathlib

from harness.campaign.store import Store, StoredRun, Wanted
from harness.gate.history_report import Moment
from harness.report import model
from harness.report.view import wasted_percent

READ_MAX = 2000  # the newest runs


def moments(reports: pathlib.Path, wanted: Wanted) -> tuple[list[Moment], list[str]]:
    """The judged runs that fit, newest first, and what was passed over, with the reason."""
    store = Store(reports)
    found, notes, runs = [], [], store.runs(wanted)
    if len(runs) > READ_MAX:
        notes.append(f"only the newest {READ_MAX:,} of {len(runs):,} runs were read")
    for run in runs[:READ_MAX]:
        if run.verdict is None:
            continue
        try:
            found.append(_moment(run, model.read(reports / run.run_id / "report.json")))
        except model.ReportError as error:
            notes.append(str(error))
    return found, store.notes + notes


def _moment(run: StoredRun, report: model.Report) -> Moment:
    """Where no step was done, there was nothing to recover or to waste: neither figure means anything."""
    time, worked = report.recovery_time, report.run.furthest_step != 0
    never = time.seconds is None and any(episode.seconds is None for episode in time.episodes)
    return Moment(
        run_id=run.run_id,
        begun_s=run.begun_s,
        scenario=report.scenario,
        profile=report.profile,
        backend=report.backend,
        commit=report.commit or "",
        verdict=report.verdict,
        recovery_s=time.seconds if worked else None,
        waste_percent=wasted_percent(report),
        never=never or not worked,
        headline=report.reasons[0] if report.reasons else "",
    )
