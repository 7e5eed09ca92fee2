"""Strikes at a job that somebody else started, as a whole: schedule, verdict, report."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass

from harness.backends.attached import AttachedJob
from harness.gameday.attach.attached_verdict import NOT_JUDGED, AttachedResult, judge_attached
from harness.gameday.attach.strikes_file import AttachedDay
from harness.gameday.attach.striking import LOG, run_attached
from harness.report import write_files
from harness.report.words import one_line
from harness.run.stop import StopRequest

REPORT = "attached-report.json"


@dataclass(frozen=True)
class AttachedEnd:
    folder: pathlib.Path
    result: AttachedResult


def rehearse(
    day: AttachedDay,
    job: AttachedJob,
    reports: pathlib.Path,
    run_id: str,
    seed: int,
    stop: StopRequest,
    say: Callable[[str], None],
) -> AttachedEnd:
    """Into `reports/<run_id>/`; `say` hears what is being done.

    Raises `ChaosError` where something could not be undone."""
    folder = reports / run_id
    run_attached(day, job, folder, seed, stop, say)
    records = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    result = judge_attached(records, sum(entry.strike is not None for entry in day.entries))
    told = {
        "schema": 1,
        "run_id": run_id,
        "job": job.name,
        "seed": seed,
        "plan": day.model_dump(mode="json"),
        "verdict": result.verdict.value,
        "reasons": list(result.reasons),
        "not_judged": list(NOT_JUDGED),
        "records": records,
        "log_tails": {name: [one_line(line) for line in lines[-50:]] for name, lines in job.log_tails().items()},
    }
    write_files({REPORT: json.dumps(told, indent=2) + "\n"}, folder)
    return AttachedEnd(folder, result)
