"""Makes the report of a game day: gameday-report.json, report.html, and report.md (the draft of a post-mortem)."""

from __future__ import annotations

import operator
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.gameday.books import Booked
from harness.gameday.day_plan import DayPlan
from harness.gameday.day_verdict import ActResult, DayResult
from harness.judge.verdict import Verdict
from harness.report import figures, html_page, markdown, next_steps, run_report, view
from harness.report.commands import step_here
from harness.report.strict_json import json_text
from harness.report.words import DASH, clock_time, gpu_seconds, minute, short, words
from harness.units import counted, format_duration

PLAN, REPORT = "gameday.json", "gameday-report.json"

SCHEMA = 1
MOMENTS_MAX = 400  # most moments shown
STEPS_MAX = 2  # most next steps of each rehearsal
MOMENT = ("After", "At, UTC", "What kind", "What")
HEAD = ("Verdict", "Rehearsal", "Recovery", "Wasted by its faults", "Detected", "Acknowledged", "Mitigated", "Why")


@dataclass(frozen=True)
class Row:
    act: ActResult

    @property
    def name(self) -> str:
        return self.act.expected.name

    @property
    def cells(self) -> tuple[str, ...]:
        after = [self.act.reactions.get(name) for name in ("detect", "acknowledge", "mitigate")]
        took = [DASH if ns is None else format_duration(ns) for ns in after]
        lines = self.act.card.expectations if self.act.card else ()
        bounds = [line.observed for line in lines if line.name == "recovery_time.max"]
        recovery = DASH if self.act.recovery_s is None else format_duration(round(self.act.recovery_s * 1e9))
        recovery = next((told for told in bounds if told.startswith(">")), recovery)  # the recovery is not over
        wasted = gpu_seconds(self.act.wasted_gpu_s) if self.act.card else DASH
        return self.act.verdict.value, self.name, recovery, wasted, *took, self.why

    @property
    def why(self) -> str:
        said = [watch.reason for watch in self.act.watches if watch.reason]
        said = [*map(view.in_words, self.act.reasons[:1]), *said]
        return "; ".join(said)

    @property
    def longest_phase(self) -> str:
        episode = figures.longest(self.act.card.evidence.run) if self.act.card else None
        if episode is None or not episode.phases_ns:
            return ""
        name, took = max(episode.phases_ns.items(), key=operator.itemgetter(1))
        return f"{words(name).lower()}, {format_duration(took)}"


def _reasons(result: DayResult) -> list[str]:
    told = list(result.reasons)
    untold = dict.fromkeys(item for act in result.acts if act.card for item in act.card.not_judged)
    if not untold:
        return told
    said = f"not judged in one rehearsal or more: {', '.join(untold)}"
    return [f"{told[0]}; {said}", *told[1:]] if result.verdict is Verdict.PASS else [*told, said]


def _sentences(result: DayResult) -> list[str]:
    names = {act.expected.name for act in result.acts}
    found = []
    for reason in _reasons(result):
        name, _, rest = reason.partition(": ")
        found.append(f"{name}: {view.in_words(rest)}" if rest and name in names else view.in_words(reason))
    return found


def to_do(result: DayResult) -> list[str]:
    found = []
    for act in result.acts:
        steps = next_steps.next_steps(act.card)[:STEPS_MAX] if act.card else []
        found += [f"{act.expected.name}: {step}" for step in (*steps, *_of_people(act))]
    return found


def _of_people(act: ActResult) -> Iterator[str]:
    late = [watch.what for watch in act.watches if watch.verdict is Verdict.FAIL]
    if any(what.startswith("alert ") for what in late):
        yield "find out why its alert was late: check its rule and its route (docs/gameday.md)"
    if any(not what.startswith("alert ") for what in late):
        runbook = act.expected.runbook
        yield f"go through its runbook with those on call: {runbook}" if runbook else "give it a runbook: …"


class StoredAct(msgspec.Struct):
    name: str
    verdict: Verdict
    reasons: list[str]
    runbook: str | None = None


class StoredDay(msgspec.Struct):
    verdict: Verdict
    reasons: list[str]
    rehearsals: list[StoredAct]
    sides: dict[str, Verdict | None] = {}
    next_steps: list[str] = []


def read(folder: pathlib.Path) -> StoredDay:
    """Reads a game day's report. Raises `ReportError` if the day was not judged or the report is unreadable."""
    if not os.path.lexists(folder / REPORT):
        raise run_report.ReportError(f"{folder.name} was not judged yet; judge it with: chaos score {folder}")
    return run_report.read_as(folder / REPORT, StoredDay)


def render(day: DayPlan, result: DayResult) -> dict[str, str]:
    rows = [Row(act) for act in result.acts]
    to_fix = [Row(act) for act in result.to_fix]
    reasons = _sentences(result)
    shown: dict[str, Any] = {"day": day, "result": result, "rows": rows, "to_fix": to_fix, "head": HEAD}
    shown |= {"reasons": reasons, "wasted": _wasted(day, result), "crumbs": _crumbs(day, result)}
    shown |= {"next_steps": to_do(result)}
    moments = _moments(result)
    shown["charts"] = html_page.timeline_charts(result.job.evidence) if result.job else None
    shown["furthest_step"] = result.job.evidence.run.reached_step if result.job else 0
    return {
        REPORT: _json(day, result),
        "report.html": html_page.fill(
            f"{__package__}/gameday.jinja",
            with_script=True,
            **shown,
            moments=moments[:MOMENTS_MAX],
            all_moments=len(moments),
        ),
        "report.md": _markdown(day, result, reasons, rows),
    }


def _crumbs(day: DayPlan, result: DayResult) -> list[str]:
    begun = str(result.job.environment.get("begun_at") or "") if result.job else ""
    work = day.job.workload
    told = [short(work.trainer.in_words(), 60), minute(begun) if begun else "", counted(work.world_size, "rank")]
    took = f"took {format_duration(result.moments[-1].at_ns)}" if result.moments else ""
    return [part for part in (*told, took) if part]


def _wasted(day: DayPlan, result: DayResult) -> str:
    if result.booked is None:
        return ""
    booked = Booked.of(result.booked)
    said = f"Wasted in the whole day: {booked.words}, {booked.caused} of it by faults."
    spent = " and ".join(told for told, _ in booked.spent(day.budget, day.job.workload.world_size))
    return f"{said} Of the budget, since the job was first steady: {spent}." if spent else said


def _moments(result: DayResult) -> list[tuple[str, str, str, str]]:
    begun = str(result.job.environment.get("begun_at") or "") if result.job else ""
    found = []
    for each in result.moments:
        minutes, seconds = divmod(each.at_ns / 1e9, 60)
        told = f"{int(minutes)}:{seconds:04.1f}", clock_time(begun, each.at_ns / 1e9) or DASH
        found.append((*told, each.kind, each.what))
    return found


def _json(day: DayPlan, result: DayResult) -> str:
    content = {
        "schema": SCHEMA,
        "name": day.name,
        "run_id": day.job.run_id,
        "backend": day.job.backend,
        "seed": day.seed,
        "verdict": result.verdict.value,
        "reasons": _reasons(result),
        "sides": {name: side and side.value for name, side in result.sides.items()},
        "outcome": result.outcome,
        "next_steps": to_do(result),
        "rehearsals": [_json_act(act) for act in result.acts],
        "timeline": [{"at_s": each.at_ns / 1e9, "kind": each.kind, "what": each.what} for each in result.moments],
    }
    return json_text(content)


def _json_act(act: ActResult) -> dict[str, Any]:
    watches = []
    for watch in act.watches:
        took_s = None if watch.took_ns is None else watch.took_ns / 1e9
        told = {"what": watch.what, "within_s": watch.within_ns / 1e9, "took_s": took_s, "verdict": watch.verdict}
        watches.append(told)
    return {
        "name": act.expected.name,
        "verdict": act.verdict.value,
        "machine": act.machine.value,
        "outcome": act.outcome,
        "reasons": list(act.worst_first),
        "recovery_s": act.recovery_s,
        "gpu_seconds_wasted_by_faults": act.wasted_gpu_s if act.card else None,
        "people_s": {name: None if took is None else took / 1e9 for name, took in act.reactions.items()},
        "expectations": watches,
        "runbook": act.expected.runbook or None,
    }


def _markdown(day: DayPlan, result: DayResult, reasons: Sequence[str], rows: Sequence[Row]) -> str:
    text = markdown.text
    questions = ["- What did people see first, and where?", "- What was missing on the dashboards?"]
    questions += ["- Which alert came late, or not at all?"]
    for row in rows:
        if runbook := row.act.expected.runbook:
            questions.append(f"- Did the runbook of {text(row.name)} help? {text(runbook)}")
    parts = [
        f"# {markdown.SIGNS[result.verdict]} {result.verdict.value.capitalize()}: {text(reasons[0])}",
        f"**{text(day.title)}** · game day {markdown.code(day.name)} · backend {markdown.code(day.job.backend)} · seed "
        f"{markdown.code(str(day.seed))} · run {markdown.code(day.job.run_id)}",
        text(" · ".join(_crumbs(day, result))),
        "\n".join(f"- {text(reason)}" for reason in reasons[1:]),
        "\n".join(f"- Next: {text(step_here(step))}" for step in to_do(result)),
        "## Scorecard\n\n" + " · ".join(f"{name}: {side or 'not judged'}" for name, side in result.sides.items()),
        markdown.table(HEAD, [row.cells for row in rows]),
        text(_wasted(day, result)),
        "## What to fix, then what cost most\n\n" + _fixes([Row(act) for act in result.to_fix]),
        "## Timeline\n\n" + markdown.table(MOMENT, _moments(result)[:MOMENTS_MAX]),
        "## Post-mortem\n\n" + "\n".join(questions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _fixes(to_fix: Sequence[Row]) -> str:
    if not to_fix:
        return "Nothing: every rehearsal passed and cost nothing."
    lines = []
    for row in to_fix:
        phase = f"; the longest phase: {row.longest_phase}" if row.longest_phase else ""
        cost = f"{row.act.verdict.value}, {gpu_seconds(row.act.wasted_gpu_s)} wasted by its faults"
        lines.append(f"1. **{markdown.text(row.name)}**: {cost}{markdown.text(phase)}")
        lines.append("   - [ ] Action: … Owner: … Due: …")
    return "\n".join(lines)
