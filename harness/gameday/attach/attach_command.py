"""Defines the command `chaos gameday --attach`, which injects faults into a job that somebody else started."""

from __future__ import annotations

import contextlib
import json
import pathlib

from harness.backends.attached import AttachedJob, attach
from harness.campaign.experiment import new_run_id
from harness.campaign.own_log import reader_as
from harness.cli.output import STYLES, out, safe, say
from harness.errors import INTERRUPTED
from harness.gameday.attach.attached_verdict import AttachedResult, judge_attached, not_judged
from harness.gameday.attach.job_log import done_again
from harness.gameday.attach.strikes_file import AttachedDay, load_attached
from harness.gameday.attach.striking import LOG, LOGS, check, run_attached
from harness.gameday.day_file import find_gameday
from harness.judge.verdict import EXIT_CODES
from harness.report import write_files
from harness.report.words import one_line
from harness.run.stop import stop
from harness.units import counted

REPORT = "attached-report.json"


def run_attached_day(
    where: str, plan: str, seed: int, dry_run: bool, reports: pathlib.Path, scenarios: pathlib.Path
) -> int:
    """Injects the scheduled faults into a running job, and returns the exit code. Raises `UsageError` if the job does
    not allow a scheduled fault."""
    day = load_attached(find_gameday(plan, scenarios))
    say(f"Looking for the job {where}.", "dim")
    with contextlib.closing(attach(where)) as job:
        check(day, job)
        out.print(f"[bold]{safe(day.name)}[/] · {safe(day.title)} · {safe(job.name)} · seed {seed}", soft_wrap=True)
        _schedule(day, job)
        if dry_run:
            say("Nothing was touched.")
            return 0
        folder = reports.resolve() / new_run_id(day.name)
        run_attached(day, job, folder, seed, stop, say)
        result, untold = _judged(day, job, folder, seed)
    out.print(f"[{STYLES[result.verdict]}]{result.verdict.value.upper()}[/]  {safe(result.reasons[0])}", soft_wrap=True)
    for reason in result.reasons[1:]:
        say(f"  {reason}")
    say(f"Not judged: {', '.join(untold)}.", "dim")
    say(f"Report: {folder / REPORT}", "dim")
    return INTERRUPTED if stop.asked else EXIT_CODES[result.verdict]


def _judged(day: AttachedDay, job: AttachedJob, folder: pathlib.Path, seed: int) -> tuple[AttachedResult, list[str]]:
    records = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    if day.progress and day.progress.read:
        records[-1:-1] = done_again(folder / LOGS, reader_as(day.progress.read))
    result = judge_attached(records, sum(entry.strike is not None for entry in day.entries))
    untold = not_judged(records)
    told = {
        "schema": 1,
        "run_id": folder.name,
        "job": job.name,
        "seed": seed,
        "plan": day.model_dump(mode="json"),
        "verdict": result.verdict.value,
        "reasons": list(result.reasons),
        "not_judged": untold,
        "records": records,
        "log_tails": {name: [one_line(line) for line in lines[-50:]] for name, lines in job.log_tails().items()},
    }
    write_files({REPORT: json.dumps(told, indent=2) + "\n"}, folder)
    return result, untold


def _schedule(day: AttachedDay, job: AttachedJob) -> None:
    at_once = f"at most {day.nodes_max(len(job.nodes))} struck at once"
    say(f"  {counted(len(job.nodes), 'node')}, {at_once}: {', '.join(job.nodes)}")
    for number, entry in enumerate(day.entries, 1):
        if entry.rest is not None:
            say(f"  {number}. rest for {entry.rest}")
        else:
            say(f"  {number}. {entry.strike}: {counted(entry.nodes, 'node')} for {entry.lasts}, then undone")
    for probe in day.probes:
        say(f"  probe {probe.name}: {' and '.join(probe.when)} each strike")
    if day.progress is None:
        say("  The plan has no progress: nothing can show that the job goes on, so no strike can pass.")
