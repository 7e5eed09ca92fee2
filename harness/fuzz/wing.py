"""Registers the stored results of searches (`chaos fuzz`), so that `chaos show` and the list of runs find them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

from harness.campaign.wings import Result, Wing
from harness.errors import UsageError
from harness.judge.verdict import Verdict
from harness.report.run_report import ReportError, read_regular

REPORT, LOG = "fuzz.json", "search.jsonl"


class _Searches:
    report = REPORT

    def is_in(self, folder: pathlib.Path) -> bool:
        return (folder / LOG).is_file()

    def read(self, folder: pathlib.Path) -> Result:
        found = self.values(folder)
        try:
            reasons = [str(found["why"]), *(str(each["reason"]) for each in found["found"])]
            commands = [str(each["command"]) for each in found["found"]]
            return Result(Verdict(found["verdict"]), reasons, [], commands)
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{folder / REPORT}: is no result of a search: {error}") from error

    def values(self, folder: pathlib.Path) -> Any:
        if not (folder / REPORT).exists():
            raise ReportError(f"{folder.name}: the search did not end; the same command goes on with it")
        try:
            return json.loads(read_regular(folder / REPORT))
        except (ValueError, RecursionError) as error:
            raise ReportError(f"{folder / REPORT}: cannot be read: {error}") from error

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        raise UsageError(f"{folder.name}: the runs of a search are judged as they come; chaos show tells the result")


WING = Wing(stored=[_Searches()])
