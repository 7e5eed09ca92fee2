"""Lets the list of runs and `chaos show` include explorations of crash states."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

from harness.campaign.wings import Result, Wing
from harness.errors import UsageError
from harness.judge.verdict import Verdict
from harness.log.journal import is_running
from harness.report.run_report import ReportError, read_regular

REPORT = "explore.json"


class _Explorations:
    report = REPORT

    def is_in(self, folder: pathlib.Path) -> bool:
        return (folder / REPORT).is_file() or (folder / "base" / "recorded").is_dir()

    def read(self, folder: pathlib.Path) -> Result:
        found = self.values(folder)
        try:
            return Result(Verdict(found["verdict"]), [str(found["why"])], [])
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{folder / REPORT}: is no result of an exploration: {error}") from error

    def values(self, folder: pathlib.Path) -> Any:
        if not (folder / REPORT).exists():
            at_work = "is at work" if is_running(folder / "base") else "did not end"
            raise ReportError(f"{folder.name}: the exploration {at_work}")
        try:
            return json.loads(read_regular(folder / REPORT))
        except (ValueError, RecursionError) as error:
            raise ReportError(f"{folder / REPORT}: cannot be read: {error}") from error

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        raise UsageError(f"{folder.name}: the answers of restores are judged as they come; chaos show tells them")


WING = Wing(stored=[_Explorations()])
