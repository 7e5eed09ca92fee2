"""Two runs beside each other: values for programs, words for a terminal, and a page. Drawn from their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.judge.difference import Line, lines, rank_lines
from harness.report import html
from harness.report.charts.beside import beside_chart
from harness.report.model import Report
from harness.report.words import DASH, gpu_seconds, percent, seconds, words

SCHEMA = 1
SHARE_MIN = 0.01  # of the larger run's sum: a smaller change explains nothing
ROWS_MAX = 12


@dataclass(frozen=True)
class Section:
    """One way to split the difference. `missing` says why there is none."""

    key: str  # phases · ranks · accounts
    title: str
    unit: str
    lines: Sequence[Line]
    missing: str = ""

    @property
    def largest(self) -> Line | None:
        """What explains most of it, if anything is worth being named. More work done explains no loss."""
        top = next((line for line in self.lines if line.name != "productive"), None)
        size = max(sum(line.before or 0 for line in self.lines), sum(line.after or 0 for line in self.lines))
        return top if top is not None and abs(top.change or 0) > SHARE_MIN * size else None

    def show(self, value: float | None) -> str:
        if value is None:
            return DASH
        return gpu_seconds(value) if self.unit == "GPU-s" else seconds(value)

    def change(self, line: Line) -> str:
        return DASH if line.change is None else ("+" if line.change >= 0 else "−") + self.show(abs(line.change))


@dataclass(frozen=True)
class Compared:
    """Two runs, and where they differ. `cautions`: in what else they differ, which may be the whole reason."""

    before: Report
    after: Report
    sections: Sequence[Section]
    cautions: Sequence[str]


def compare(
    before: Report, after: Report, ranks: tuple[Mapping[str, float], Mapping[str, float]] | None, why: str = ""
) -> Compared:
    """`ranks`: what each rank did in the recovery of either run; `None` where a log is gone, and `why`."""
    phases = lines(before.recovery_time.phases, after.recovery_time.phases)
    accounts = lines(before.wasted_gpu_hours.accounts, after.wasted_gpu_hours.accounts)
    by_rank = rank_lines(*ranks) if ranks else []
    sections = [
        _section("phases", "By phase of the longest recovery", "s", phases, "neither run recovered from an outage"),
        _section("ranks", "By rank, in that recovery", "s", by_rank, why or "no rank was started again"),
        _section("accounts", "By account of GPU time", "GPU-s", accounts, "neither run has a ledger"),
    ]
    return Compared(before, after, sections, _cautions(before, after))


def _section(key: str, title: str, unit: str, found: Sequence[Line], lacking: str) -> Section:
    return Section(key, title, unit, found, "" if found else lacking)


def _cautions(before: Report, after: Report) -> list[str]:
    names = ("scenario", "profile", "backend", "seed")
    found = [
        f"{name}: {getattr(before, name)} and {getattr(after, name)}"
        for name in names
        if getattr(before, name) != getattr(after, name)
    ]
    for name in ("cpu", "cpus", "machine", "gpu", "torch", "python"):
        old, new = before.environment.get(name), after.environment.get(name)
        if old != new:
            found.append(f"{name}: {old} and {new}")
    return found


def sentences(found: Compared) -> list[str]:
    """What a person wants to know first."""
    recovery = before, after = found.before.recovery_time.seconds, found.after.recovery_time.seconds
    said = [f"Recovery took {seconds(before)} and {seconds(after)}{_ratio(*recovery)}."]
    waste = [each.wasted_gpu_hours.percent_by_faults for each in (found.before, found.after)]
    said.append(f"Faults wasted {percent(waste[0])} and {percent(waste[1])} of the GPU time.")
    for section in found.sections:
        if section.missing:
            said.append(f"{section.title}: not known, {section.missing}.")
        elif (top := section.largest) is not None:
            change = section.change(top)
            said.append(f"{section.title}: most of it is {words(top.name).lower()}, {change}.")
        else:
            said.append(f"{section.title}: nothing differs by more than 1 %.")
    return said


def _ratio(before: float | None, after: float | None) -> str:
    return f" ({after / before:.2f} ×)" if before and after is not None else ""


def to_json(found: Compared) -> dict[str, Any]:
    """Stable: `schema` grows with every change of meaning. Phases and ranks in seconds, accounts in GPU-seconds."""
    return {
        "schema": SCHEMA,
        "before": _json_run(found.before),
        "after": _json_run(found.after),
        "cautions": list(found.cautions),
        **{section.key: _json_section(section) for section in found.sections},
    }


def _json_run(report: Report) -> dict[str, Any]:
    head = {"run_id": report.run_id, "scenario": report.scenario, "backend": report.backend, "commit": report.commit}
    figures = {"recovery_seconds": report.recovery_time.seconds}
    figures["waste_percent_by_faults"] = report.wasted_gpu_hours.percent_by_faults
    return head | {"verdict": report.verdict.value} | figures


def _json_section(section: Section) -> dict[str, Any]:
    rows = [
        {"name": each.name, "before": each.before, "after": each.after, "change": each.change} for each in section.lines
    ]
    return {"missing": section.missing, "largest": section.largest.name if section.largest else None, "lines": rows}


def rows(section: Section) -> list[tuple[str, str, str, str]]:
    """(what, before, after, change) as text, the largest change first."""
    return [
        (words(line.name), section.show(line.before), section.show(line.after), section.change(line))
        for line in section.lines[:ROWS_MAX]
    ]


def render(found: Compared) -> str:
    """The page: no network, no script but ours."""
    script = html.resource("report.js")
    drawn = [_drawn(section) for section in found.sections]
    values = {"found": found, "sentences": sentences(found), "sections": drawn, "seconds": seconds, "percent": percent}
    return html.fill("comparison.jinja", html.script_policy(script), js=Markup(script), **values)


def _drawn(section: Section) -> dict[str, Any]:
    shown: Callable[[float | None], str] = section.show
    bars = [(words(line.name), line.before, line.after) for line in section.lines[:ROWS_MAX]]
    charts = [beside_chart(section.title, bars, shown, narrow) for narrow in (False, True)] if bars else []
    return {"section": section, "rows": rows(section), "charts": charts, "more": max(0, len(section.lines) - ROWS_MAX)}
