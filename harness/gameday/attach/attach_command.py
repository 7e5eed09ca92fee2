"""`chaos gameday --attach`: strikes at a job that somebody else started."""

from __future__ import annotations

import contextlib
import pathlib

from harness.backends.attached import AttachedJob, attach
from harness.campaign.experiment import new_run_id
from harness.cli.output import STYLES, out, safe, say
from harness.errors import INTERRUPTED
from harness.gameday.attach.attached_day import REPORT, rehearse
from harness.gameday.attach.attached_verdict import NOT_JUDGED
from harness.gameday.attach.strikes_file import AttachedDay, load_attached
from harness.gameday.attach.striking import check
from harness.gameday.day_file import find_gameday
from harness.judge.score import EXIT_CODES
from harness.run.stop import stop
from harness.units import counted


def run_attached_day(
    where: str, plan: str, seed: int, dry_run: bool, reports: pathlib.Path, scenarios: pathlib.Path
) -> int:
    """Returns the exit code. Raises `UsageError` for a job that did not allow it, before anything is touched."""
    day = load_attached(find_gameday(plan, scenarios))
    say(f"Looking for the job {where}.", "dim")
    with contextlib.closing(attach(where)) as job:
        check(day, job)
        out.print(f"[bold]{safe(day.name)}[/] · {safe(day.title)} · {safe(job.name)} · seed {seed}", soft_wrap=True)
        _schedule(day, job)
        if dry_run:
            say("Nothing was touched.")
            return 0
        ended = rehearse(day, job, reports.resolve(), new_run_id(day.name), seed, stop, say)
    result = ended.result
    out.print(f"[{STYLES[result.verdict]}]{result.verdict.value.upper()}[/]  {safe(result.reasons[0])}", soft_wrap=True)
    for reason in result.reasons[1:]:
        say(f"  {reason}")
    say(f"Not judged: {', '.join(NOT_JUDGED)}.", "dim")
    say(f"Report: {ended.folder / REPORT}", "dim")
    return INTERRUPTED if stop.asked else EXIT_CODES[result.verdict]


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
