"""Runs a whole game day (fault-free run, job, verdict, report), and resumes a day after a crash of the harness.

The module `harness.gameday.starts_and_stops` decides when faults begin and when a game day ends early."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from harness.backends.contract import Backend
from harness.campaign import ledger_so_far
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver, Stage, staged
from harness.campaign.checked_files import PLAN
from harness.campaign.fault_free import copy_fault_free, ensure_fault_free, expects_band, fault_free_plans
from harness.campaign.run_store import picked
from harness.errors import ChaosError, EventLogError, FaultError, UsageError
from harness.evidence import losses
from harness.evidence.logs import FAULT_FREE, Evidence, beside, part_of
from harness.gameday import day_report
from harness.gameday.books import STEADY
from harness.gameday.day_plan import DayPlan
from harness.gameday.day_verdict import DayResult, Expected, judge_day
from harness.gameday.starts_and_stops import Director
from harness.judge.guarantee import guarantees
from harness.judge.score import Scorecard, judge
from harness.log import journal, reading, untrusted_files
from harness.report import write_files, write_reports
from harness.report.charts.loss_curves import Series
from harness.report.commands import REHEARSALS
from harness.report.drawing import line
from harness.run.job import Outcome, run_job
from harness.run.stop import StopRequest
from harness.run.undo import undo_open
from harness.spec.document import checked, dotted
from harness.timeline import timeline
from harness.timeline.window import JobLog

FILE = day_report.PLAN
BYTES_MAX = 64 * 2**20


@dataclass(frozen=True)
class Ended:
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
    """Runs a game day in `reports/<run id>/` and judges it. Raises `ChaosError` if the job cannot be launched."""
    guarantees()  # a plug-in that cannot be used is refused now, not after the day
    stop = stop or StopRequest()
    kept = _fault_free(day, reports, backend, observer, stop)
    run_dir = reports / day.job.run_id
    run_dir.mkdir(parents=True)
    write_files({FILE: json.dumps(day.to_json(), indent=2) + "\n"}, run_dir)
    for name, folder in kept.items():
        copy_fault_free(folder, run_dir / name)
    stage = Stage("run with faults", day.job.workload.nodes, folder=run_dir, fault_free=run_dir)
    given = (day.job, director.rehearsals, run_dir, backend, observer, stop, director)

    def run() -> Outcome:
        with director.books.kept(run_dir):  # the count to the job's end comes before the news that it is over
            return run_job(*given)

    outcome = staged(observer, stage, run)
    if outcome.outcome in ("completed", "done"):
        with contextlib.suppress(FaultError):  # too much is kept then, and nothing else is wrong
            untrusted_files.remove_tree(run_dir, "checkpoints")
    return Ended(run_dir, judged(run_dir, observer), outcome.outcome == "interrupted")


class NoFaultFree(ChaosError):
    pass


def _fault_free(
    day: DayPlan, reports: pathlib.Path, backend: Backend, observer: CampaignObserver, stop: StopRequest
) -> dict[str, pathlib.Path]:
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
    """Reads the plan of a stored game day. Raises `UsageError` if the plan is missing or unreadable."""
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
    """Returns the folder of a game day. `name` is a path, an id or its beginning, or `last` for the newest day."""
    if name != "last":
        for given in (pathlib.Path(name), reports / name):
            if given.is_dir():
                return given.resolve()
    known = sorted(reports.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return (reports / picked(name, [path.parent.name for path in known], "game day", reports)).resolve()


def judged(run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN) -> DayResult:
    """Judges a stored game day from its event log, and writes the reports of the day and of its rehearsals."""
    result, cards = judge_stored(run_dir, observer)
    write_day(run_dir, result, cards)
    return result


def judge_stored(
    run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN
) -> tuple[DayResult, dict[str, Scorecard]]:
    """Judges a stored game day without writing files. Returns the result of the game day, and each rehearsal's
    scorecard, by the rehearsal's name."""
    day, job = load_day(run_dir), JobLog(reading.read(run_dir / "events"))
    whole = cache(lambda: beside(job.whole, run_dir))

    def card(what: str, evidence: Callable[[], Evidence], name: str) -> Scorecard | None:
        try:
            return judge(evidence(), name)
        except EventLogError as error:
            observer.note(f"{what} cannot be judged: {error}")
            return None

    def part(rehearsal: str) -> Scorecard | None:
        return card(rehearsal, lambda: part_of(replace(whole(), run=job.window(rehearsal))), rehearsal)

    events = sorted(job.log.harness.events, key=lambda event: event["at"]) if job.log.harness else []
    known = {act.name for act in day.acts}
    begun = [e["rehearsal"] for e in events if e["event"] == "rehearsal.started" and e["rehearsal"] in known]
    cards = {name: found for name in begun if (found := part(name)) is not None}
    same = all(act.expects_same_losses for act in day.acts if act.name in cards)
    expect = {"loss_continuity": {"mode": "exact"}} if cards and same else {}
    ended = next((e["at"] for e in events if e["event"] == "gameday.over"), None)

    def of_all() -> Evidence:
        return whole() if ended is None else part_of(replace(whole(), run=job.until(ended)))

    of_the_job = card("the job", lambda: _of_the_job(of_all(), expect), run_dir.name)
    expected = []
    for number, scene in enumerate(day.scenes):
        for act in scene.acts:
            people = {name: value.ns for name, value in act.people if value is not None}
            alerts = [(alert.name, alert.within.ns) for alert in act.alerts]
            expected.append(Expected(act.name, number, alerts, people, act.runbook or ""))
    probes = [(probe.name, moment) for probe in day.probes for moment in probe.when]
    result = judge_day(events, expected, cards, of_the_job, probes)
    return replace(result, booked=_booked(events, of_the_job)), cards


def _booked(events: Sequence[Mapping[str, Any]], job: Scorecard | None) -> dict[str, Any] | None:
    if job is None or not job.scores.get("wasted_gpu_hours") or not job.evidence.ledger.allocated:
        return None
    steady = ledger_so_far.first(events, STEADY)
    apart = {} if steady is None else {"since": ledger_so_far.booked(job.evidence, steady)}
    return ledger_so_far.as_told(job.evidence) | apart


def _of_the_job(whole: Evidence, expect: Mapping[str, Any]) -> Evidence:
    acted = [fault for fault in whole.run.faults if fault.injected is not None]
    ids = {fault.id for fault in acted}
    planned = [fault for fault in whole.run.plan.get("faults") or () if fault.get("id") in ids]
    run = replace(whole.run, faults=acted, plan={**whole.run.plan, "faults": planned, "expect": expect})
    return replace(whole, run=run)


def write_day(run_dir: pathlib.Path, result: DayResult, cards: Mapping[str, Scorecard]) -> None:
    day = load_day(run_dir)
    for name, card in cards.items():
        folder = run_dir / REHEARSALS / name
        folder.mkdir(parents=True, exist_ok=True)
        write_reports(card, folder)
        begun = next((step - 1 for step in card.evidence.run.steps.step[:1].tolist()), 0)
        write_files({PLAN: json.dumps(day.alone(name, begun).to_json(), indent=2) + "\n"}, folder)
    write_files(day_report.render(day, result), run_dir)


def resume_day(run_dir: pathlib.Path, observer: CampaignObserver = SILENT_CAMPAIGN) -> Ended:
    """Undoes faults that a killed harness left active, and judges the game day. Raises `UsageError` if the day is still
    running, and `FaultError` if a fault could not be undone."""
    load_day(run_dir)
    if journal.is_running(run_dir):
        raise UsageError(f"{run_dir}: this game day is still going on; end that one first")
    if not journal.is_closed(run_dir):
        undo_open(run_dir)
        journal.mark_closed(run_dir)
        observer.note("What was injected is undone, and nothing of the job is left.")
    return Ended(run_dir, judged(run_dir, observer))


def twin_line(run_dir: pathlib.Path) -> Series | None:
    """Returns the losses of a game day's fault-free run, or `None` if the day has no readable fault-free run."""
    try:
        return line(losses.surviving(timeline.load(run_dir / FAULT_FREE).steps))
    except (EventLogError, OSError):
        return None
