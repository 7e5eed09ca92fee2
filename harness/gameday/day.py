"""A game day as a whole: fault-free run, job, verdict, report; and what is done after a crash of the harness.

What begins when, and what ends the day early, is decided in `harness.gameday.starts_and_stops`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.backends.contract import Backend
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver, Stage
from harness.campaign.fault_free import copy_fault_free, ensure_fault_free, expects_band, fault_free_plans
from harness.errors import ChaosError, EventLogError, FaultError, UsageError
from harness.gameday import day_report
from harness.gameday.day_plan import DayPlan
from harness.gameday.day_verdict import DayResult, Expected, judge_day
from harness.gameday.starts_and_stops import Director
from harness.judge.facts import losses
from harness.judge.facts.evidence import FAULT_FREE, Evidence, beside, part_of
from harness.judge.score import Scorecard, judge
from harness.log import journal, reading, untrusted_files
from harness.report import write_files, write_reports
from harness.run.job import run_job
from harness.run.stop import StopRequest
from harness.run.undo import undo_open
from harness.spec.document import checked, dotted, short
from harness.timeline import timeline
from harness.timeline.window import JobLog

Floats = npt.NDArray[np.float64]
FILE = day_report.PLAN
REHEARSALS = "rehearsals"  # the reports of each, in the day's folder
BYTES_MAX = 64 * 2**20


@dataclass(frozen=True)
class Ended:
    """A day that is over: its folder, its verdict, and whether the user ended it."""

    folder: pathlib.Path
    result: DayResult
    interrupted: bool = False


def run_day(
    day: DayPlan,
    reports: pathlib.Path,
    backend: Backend,
    director: Director,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
) -> Ended:
    """Runs it into `reports/<run id>/` and judges it. Raises `ChaosError` when the job cannot be had at all."""
    stop = stop or StopRequest()
    kept = _fault_free(day, reports, backend, observer, stop)
    run_dir = reports / day.job.run_id
    run_dir.mkdir(parents=True)
    write_files({FILE: json.dumps(day.to_json(), indent=2) + "\n"}, run_dir)
    for name, folder in kept.items():
        copy_fault_free(folder, run_dir / name)
    if (twin := twin_line(run_dir)) is not None and len(twin[2]):
        director.usual_step_ns = float(np.median(twin[2])) * 1e9
    stage = Stage("run with faults", day.job.workload.nodes, folder=run_dir, fault_free=run_dir)
    observer.stage(stage)
    outcome = run_job(day.job, director.rehearsals, run_dir, backend, observer, stop, director)
    observer.stage_ended(stage, outcome.outcome)
    if outcome.outcome == "completed":
        with contextlib.suppress(FaultError):  # too much is kept then, and nothing else is wrong
            untrusted_files.remove_tree(run_dir, "checkpoints")
    return Ended(run_dir, judged(run_dir, observer), outcome.outcome == "interrupted")


class NoFaultFree(ChaosError):
    """The job does not even finish without a fault."""


def _fault_free(
    day: DayPlan, reports: pathlib.Path, backend: Backend, observer: CampaignObserver, stop: StopRequest
) -> dict[str, pathlib.Path]:
    """The kept fault-free runs, by the folder in the day's own. The plan may do without."""
    reports.mkdir(parents=True, exist_ok=True)
    found = {}
    band = any(expects_band(act.plan) for act in day.acts)
    for name, (plan, repeat) in fault_free_plans(day.job, band).items() if day.fault_free else ():
        stage = Stage("fault-free run", plan.workload.nodes)
        observer.stage(stage)
        folder, outcome = ensure_fault_free(plan, reports, backend, observer, stop, repeat=repeat)
        observer.stage_ended(stage, "cached" if outcome is None else outcome.outcome)
        if outcome is not None and outcome.outcome == "interrupted":
            raise KeyboardInterrupt
        if outcome is not None and outcome.outcome != "completed":
            raise NoFaultFree(f"the job does not finish even without a fault: {outcome.reason}")
        found[name] = folder
    return found


def load_day(run_dir: pathlib.Path) -> DayPlan:
    """The plan of a stored day. Raises `UsageError` where there is none, or none that can be read."""
    try:
        data = json.loads(untrusted_files.read(run_dir, FILE, BYTES_MAX))
    except (OSError, ValueError, FaultError, RecursionError) as error:
        raise UsageError(f"{run_dir} holds no game day: {FILE}: {getattr(error, 'strerror', None) or error}") from error
    day, problems = checked(DayPlan, data)
    if day is None:
        path, message = problems[0]
        raise UsageError(f"{run_dir / FILE}: {dotted(path) or 'the plan'}: {message}")
    return day


def find_day(name: str, reports: pathlib.Path) -> pathlib.Path:
    """The folder of a game day by path, by id, by the beginning of its id, or of the newest one as `last`."""
    if name != "last":
        for given in (pathlib.Path(name), reports / name):
            if given.is_dir():
                return given.resolve()
    known = sorted(reports.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    names = [path.parent.name for path in known]
    fitting = names[:1] if name == "last" else [each for each in names if each.startswith(name)]
    if len(fitting) == 1:
        return (reports / fitting[0]).resolve()
    if fitting:
        raise UsageError(f"{short(name)!r} fits {len(fitting)} game days: {', '.join(fitting)}")
    newest = ", ".join(names[:5]) or "none yet"
    raise UsageError(f"unknown game day {short(name)!r} in {reports}; the newest are: {newest}")


def judged(run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN) -> DayResult:
    """Judges a stored day from its event log, and writes its report and those of its rehearsals."""
    result, cards = judge_stored(run_dir, observer)
    write_day(run_dir, result, cards)
    return result


def judge_stored(
    run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN
) -> tuple[DayResult, dict[str, Scorecard]]:
    """The day's verdict, and the cards of its rehearsals. Writes nothing."""
    day, stored = load_day(run_dir), _Stored(run_dir)
    harness = stored.job.log.harness
    events = sorted(harness.events, key=lambda event: event["at"]) if harness else []
    known = {act.name for act in day.acts}
    begun = [e["rehearsal"] for e in events if e["event"] == "rehearsal.started" and e["rehearsal"] in known]
    cards = {name: card for name in begun if (card := _card(stored, name, observer)) is not None}
    same = all(act.expects_same_losses for act in day.acts if act.name in cards)
    whole = _card(stored, None, observer, {"loss_continuity": {"mode": "exact"}} if cards and same else {})
    probes = [(probe.name, moment) for probe in day.probes for moment in probe.when]
    return judge_day(events, _expected(day), cards, whole, probes), cards


def write_day(run_dir: pathlib.Path, result: DayResult, cards: Mapping[str, Scorecard]) -> None:
    """The reports of a day and of its rehearsals."""
    day = load_day(run_dir)
    for name, card in cards.items():
        folder = run_dir / REHEARSALS / name
        folder.mkdir(parents=True, exist_ok=True)
        write_reports(card, folder)
    told = day_report.Day(day.name, day.title, day.job.run_id, day.job.backend, day.seed)
    write_files(day_report.render(told, result), run_dir)


class _Stored:
    """The log of a stored day and its fault-free runs, each read once."""

    def __init__(self, run_dir: pathlib.Path):
        self.run_dir = run_dir
        self.job = JobLog(reading.read(run_dir / "events"))

    @cached_property
    def whole(self) -> Evidence:
        return beside(self.job.whole, self.run_dir)

    def part(self, rehearsal: str) -> Evidence:
        return part_of(replace(self.whole, run=self.job.window(rehearsal)))


def _card(
    stored: _Stored, rehearsal: str | None, observer: CampaignObserver, expect: Mapping[str, Any] | None = None
) -> Scorecard | None:
    """`None`, and a note, for what cannot be judged. Of the job as a whole those faults count that acted: what the
    others came to is told of their rehearsals. `expect`: of the job as a whole, also between and after them."""
    try:
        if rehearsal is not None:
            return judge(stored.part(rehearsal), rehearsal)
        run = stored.whole.run
        acted = [fault for fault in run.faults if fault.injected is not None]
        ids = {fault.id for fault in acted}
        planned = [fault for fault in run.plan.get("faults") or () if fault.get("id") in ids]
        run = replace(run, faults=acted, plan={**run.plan, "faults": planned, "expect": expect or {}})
        return judge(replace(stored.whole, run=run), stored.run_dir.name)
    except EventLogError as error:
        observer.note(f"{rehearsal or 'the job'} cannot be judged: {error}")
        return None


def _expected(day: DayPlan) -> list[Expected]:
    found = []
    for number, scene in enumerate(day.scenes):
        for act in scene.acts:
            people = {name: value.ns for name, value in act.people if value is not None}
            alerts = [(alert.name, alert.within.ns) for alert in act.alerts]
            found.append(Expected(act.name, number, alerts, people, act.runbook or ""))
    return found


def resume_day(run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN) -> Ended:
    """After the harness was killed in the middle of a day: heals what was injected, and ends the day honestly.

    Raises `UsageError` for a day that is still going on, `FaultError` for what could not be undone.
    """
    load_day(run_dir)
    if journal.is_running(run_dir):
        raise UsageError(f"{run_dir}: this game day is still going on; end that one first")
    if not journal.is_closed(run_dir):
        undo_open(run_dir)
        journal.mark_closed(run_dir)
        observer.note("What was injected is undone, and nothing of the job is left.")
    return Ended(run_dir, judged(run_dir, observer))


def twin_line(run_dir: pathlib.Path) -> tuple[Floats, Floats, Floats] | None:
    """Step, loss and seconds of the steps of the fault-free run that the day is compared with; `None`: it has none."""
    try:
        curve = losses.surviving(timeline.load(run_dir / FAULT_FREE).steps)
    except (EventLogError, OSError):
        return None
    return curve.step.astype(np.float64), curve.loss, curve.took_ns / 1e9
