"""Finds the newest stored runs that fit a filter, and reads their reports or judges their logs again."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
import pathlib
import time

from harness.campaign.run_store import ByLog, NotARun, Store, StoredRun, Wanted, by_log, is_possible
from harness.campaign.wings import stored_kind_of
from harness.log.journal import is_running
from harness.report import run_report
from harness.report.run_report import Report, ReportError
from harness.report.words import one_line
from harness.units import counted

COMPARED = (  # values of a report that are compared with the log
    *("verdict", "scenario", "commit", "begun_at", "recovery_time.seconds", "run.stuck_in"),
    *(f"wasted_gpu_hours.gpu_seconds_{which}" for which in ("allocated", "wasted", "wasted_by_faults")),
)
_UNKNOWN = StoredRun("", 0, "", "", "", "", None, "", is_control=False)


def by_reports(store: Store, wanted: Wanted, most: int) -> list[tuple[StoredRun, Report]]:
    """Returns the newest judged runs that fit the filter `wanted`, at most `most` runs, with their reports. Adds notes
    on runs that were left out to `store.notes`."""
    runs = store.evidence(wanted)
    _note_older(store, len(runs), most)
    found = []
    for run in runs[:most]:
        try:
            found.append((run, run_report.read(store.reports / run.run_id / "report.json")))
        except ReportError as error:
            store.notes.append(str(error))
    return found


def by_logs(store: Store, wanted: Wanted, most: int, since_s: float = 0) -> tuple[list[ByLog], list[StoredRun]]:
    """Returns the newest runs that fit the filter `wanted`, at most `most`, each judged again from its log. Also
    returns each run that may fit the filter but whose log cannot be judged. Adds a note to `store.notes` on each run
    whose log cannot be judged, or whose stored report is missing or differs from the log. Runs in progress are left
    out, and so are runs that began before `since_s` (seconds since 1970)."""
    stored = {run.run_id: run for run in store.runs()}
    names = {*stored, *(path.parent.name for path in store.reports.glob("[!.]*/events") if path.is_dir())}
    found, silent, older = dict[str, ByLog](), list[StoredRun](), 0
    for folder in (store.reports / name for name in sorted(names)):
        if folder.is_symlink() or stored_kind_of(folder) or is_running(folder):
            continue
        if (newest_s := _newest_s(folder, stored.get(folder.name))) < since_s:
            older += 1
            continue
        try:
            each = by_log(folder)
            if not each.run.is_control and wanted.fits(each.run):
                found[folder.name] = each
                store.notes += _differences(folder, each.report)
        except ReportError as error:
            known = stored.get(folder.name, _UNKNOWN)
            run = dataclasses.replace(known, run_id=folder.name, begun_s=newest_s)
            asked = wanted if run.commit else dataclasses.replace(wanted, commit=None)
            if not run.is_control and (asked.fits(run) or not run.scenario):
                silent.append(run)
                store.notes.append(f"{one_line(folder.name)}: {one_line(error)}")
        except NotARun:
            continue
    newest = sorted((each.run for each in found.values()), key=lambda run: (run.begun_s, run.run_id), reverse=True)
    store.notes += [f"{counted(older, 'run')} left out: too old"] if older else []
    _note_older(store, len(newest), most)
    return [found[run.run_id] for run in store.once(newest[:most])], silent


def _note_older(store: Store, runs: int, most: int) -> None:
    if runs > most:
        store.notes.append(f"only the newest {most:,} of {runs:,} runs were read")


def _differences(folder: pathlib.Path, by_log: Report) -> list[str]:
    try:
        stored = run_report.read(folder / "report.json")
    except ReportError as error:
        return [f"{one_line(error)}; the verdict by its log: {by_log.verdict}"]
    values = ((name, *(one_line(operator.attrgetter(name)(each)) for each in (stored, by_log))) for name in COMPARED)
    differ = (f"{name} {said}, the log {right}" for name, said, right in values if said != right)
    return [f"{one_line(folder.name)}: report.json says {words}; the log counts" for words in differ][:1]


def _newest_s(folder: pathlib.Path, stored: StoredRun | None) -> float:
    moments = [stored.begun_s] if stored else []
    with contextlib.suppress(OSError):
        moments.append(os.stat(folder / "plan.json", follow_symlinks=False).st_mtime)
    return max(filter(is_possible, moments), default=time.time())
