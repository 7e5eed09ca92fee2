"""Registers the stored results of `chaos explore`, so that `chaos show` and the list of runs find them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import msgspec

from harness.campaign.wings import Result, Wing
from harness.errors import UsageError
from harness.judge.verdict import Verdict
from harness.log.journal import is_running
from harness.report.run_report import ReportError, read_as

REPORT = "explore.json"


class _Told(msgspec.Struct):
    verdict: Verdict
    why: str


class _Explorations:
    report = REPORT

    def is_in(self, folder: pathlib.Path) -> bool:
        return (folder / REPORT).is_file() or (folder / "base" / "recorded").is_dir()

    def read(self, folder: pathlib.Path) -> Result:
        found = read_as(self._there(folder), _Told)
        return Result(found.verdict, [found.why], [])

    def values(self, folder: pathlib.Path) -> Any:
        return read_as(self._there(folder), dict[str, Any])

    def _there(self, folder: pathlib.Path) -> pathlib.Path:
        if not (folder / REPORT).exists():
            at_work = "is at work" if is_running(folder / "base") else "did not end"
            raise ReportError(f"{folder.name}: the exploration {at_work}")
        return folder / REPORT

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        raise UsageError(f"{folder.name}: the answers of restores are judged as they come; chaos show tells them")


WING = Wing(stored=[_Explorations()])
