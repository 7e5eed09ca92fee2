"""Lets the harness read stored game days, check their plans, and list their verdicts in the pre-launch checklist."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from harness.campaign.wings import FileKind, Item, Part, Proof, Result, Wing, newest, trainers_of
from harness.gameday import day_report
from harness.gameday.attach.strikes_file import load_attached
from harness.gameday.day_file import are_strikes
from harness.gameday.day_plan import plan_day
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.report.commands import REHEARSALS
from harness.report.run_report import ReportError
from harness.spec.document import Document, read_text
from harness.units import counted


class _Days:
    report = day_report.REPORT

    def is_in(self, folder: pathlib.Path) -> bool:
        return os.path.lexists(folder / day_report.PLAN)

    def read(self, folder: pathlib.Path) -> Result:
        day = day_report.read(folder)
        parts = [Part(act.name, act.verdict, act.reasons) for act in day.rehearsals]
        return Result(day.verdict, day.reasons, parts, day.next_steps)

    def values(self, folder: pathlib.Path) -> Any:
        return msgspec.to_builtins(day_report.read(folder))

    def judge(self, folder: pathlib.Path) -> tuple[Result, Callable[[], None]]:
        from harness.gameday.day import judge_stored, write_day  # imported late: the list of runs does not need it

        result, cards = judge_stored(folder)
        parts = [Part(act.expected.name, act.verdict, act.worst_first) for act in result.acts]
        told = Result(result.verdict, result.reasons, parts, day_report.to_do(result))
        return told, functools.partial(write_day, folder, result, cards)


def _proofs(reports: pathlib.Path) -> Iterator[Proof]:
    for folder, at_s in newest(reports, day_report.PLAN):
        try:
            day = day_report.read(folder)
        except ReportError:
            continue
        told = (run_report.commit_in(path) for path in folder.glob(f"{REHEARSALS}/*/report.json"))
        trainers, held = trainers_of(folder / "plan.json"), counted(len(day.rehearsals), "rehearsal")
        from_here = (folder, at_s, frozenset(filter(None, told)), trainers)
        yield Proof(Item.GAME_DAY, day.verdict, (day.reasons or [held])[0], *from_here)
        if alerts := day.sides.get("alerts"):
            yield Proof(Item.ALERTS, alerts, f"the alerts of {held}", *from_here)
        if without := [each.name for each in day.rehearsals if not each.runbook]:
            yield Proof(Item.RUNBOOKS, Verdict.FAIL, f"rehearsed without a runbook: {', '.join(without)}", *from_here)
        elif day.rehearsals:
            yield Proof(Item.RUNBOOKS, Verdict.PASS, f"{held}, each with a runbook", *from_here)


def _check(path: pathlib.Path, scenarios: pathlib.Path) -> str:
    if are_strikes(Document(read_text(path), str(path)).data):
        return f"ok, {counted(len(load_attached(path).entries), 'entry', 'entries')} for a job that runs already"
    day = plan_day(path, 1, "local", "validate", scenarios)
    return f"ok, a game day with {counted(len(day.scenes), 'entry', 'entries')}"


WING = Wing(
    stored=[_Days()],
    files=[FileKind("game day", key="entries", folder="gamedays", check=_check)],
    proofs=_proofs,
)
