"""Shows the comparison of two runs as JSON values, as sentences for a terminal, and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.gate.beside_chart import beside_chart
from harness.gate.two_runs_difference import Line, lines, rank_lines
from harness.gate.two_runs_inputs import different_inputs
from harness.report import html_page, view
from harness.report.run_report import Report
from harness.report.words import DASH, gpu_seconds, is_number, seconds, words

SCHEMA = 1
LABELS = ("First run", "Second run")
SHARE_MIN = 0.01  # share of the larger sum below which a change explains nothing
MOST = 0.5  # share of the difference from which a part is called most of it
PACE = 1.1  # ratio of the median steps from which they explain a difference
ROWS_MAX = 12
DIFFERENT = "Inputs that differ, or are not known:"


@dataclass(frozen=True)
class Section:
    """The difference between two runs, split by recovery phase, by rank, or by use of GPU time. `missing` is the reason
    why the difference is unknown, or is empty."""

    key: str  # phases · ranks · accounts
    title: str
    unit: str
    lines: Sequence[Line]
    missing: str = ""

    @property
    def lost(self) -> list[Line]:
        return [line for line in self.lines if line.name != "productive"]

    @property
    def largest(self) -> Line | None:
        """Returns the part with the largest change between the runs, or `None` if the change is at most 1 % of the
        larger total."""
        top = next(iter(self.lost), None)
        size = max(sum(line.before or 0 for line in self.lines), sum(line.after or 0 for line in self.lines))
        return top if top is not None and abs(top.change or 0) > SHARE_MIN * size else None

    def show(self, value: float | None) -> str:
        if value is None:
            return DASH
        return gpu_seconds(value) if self.unit == "GPU-s" else seconds(value)

    def change(self, line: Line) -> str:
        if line.change is None:
            return DASH
        size = self.show(abs(line.change))
        return size if size == self.show(0.0) else ("+" if line.change > 0 else "−") + size

    @property
    def shown(self) -> list[Line]:
        nothing = self.show(0.0)
        return [line for line in self.lines if {self.show(line.before), self.show(line.after)} != {nothing}]


@dataclass(frozen=True)
class Compared:
    before: Report
    after: Report
    sections: Sequence[Section]
    cautions: Sequence[str]


def compare(
    before: Report,
    after: Report,
    ranks: tuple[Mapping[str, float], Mapping[str, float]] | None,
    why: str = "",
    plans: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> Compared:
    """Compares the reports of two runs. `ranks` holds, for both runs, the seconds that each rank's start took in the
    longest recovery. If a run's log cannot be read, `ranks` is `None`, `why` is the reason, and both `plans` are
    empty."""
    phases = before.recovery_time.phases, after.recovery_time.phases
    accounts = before.wasted_gpu_hours.accounts, after.wasted_gpu_hours.accounts
    no_phases, no_ledger = _lacking(phases, "an outage"), _lacking(accounts, "a ledger")
    no_ranks = why or _lacking(ranks or ({}, {}), "a rank that was started again")
    split = [
        ("phases", "By phase of the longest recovery", "s", lines(*phases), no_phases),
        ("ranks", "By rank, in that recovery", "s", rank_lines(*ranks) if ranks else [], no_ranks),
        ("accounts", "By account of GPU time", "GPU-s", lines(*accounts), no_ledger),
    ]
    sections = [
        Section(key, title, unit, [] if lacking else found, lacking) for key, title, unit, found, lacking in split
    ]
    return Compared(before, after, sections, _cautions(before, after, plans))


def _lacking(both: tuple[Mapping[str, float], Mapping[str, float]], what: str) -> str:
    before, after = both
    if before and after:
        return ""
    return f"only the {'first' if before else 'second'} run has {what}" if before or after else f"no run has {what}"


def _cautions(before: Report, after: Report, plans: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[str]:
    found = different_inputs(before, after, plans)
    steps = [each.metrics.get("step_seconds_p50") for each in (before, after)]
    old, new = (float(step) if is_number(step) else 0.0 for step in steps)
    if old and new and not old / PACE < new < old * PACE:
        found.append(f"median step: {seconds(old)} and {seconds(new)}, by the host's load or by the trainer")
    return found


def sentences(found: Compared) -> list[str]:
    both = found.before, found.after
    before, after = (report.recovery_time.seconds for report in both)
    ratio = f" ({after / before:.2f} ×)" if before and after is not None else ""
    said = [f"Recovery time: {_in_both(both, 0)}{ratio}."]
    if not found.cautions:
        said.append("Nothing that goes in differs: seed, size, code, arguments, scenario, host. It may be chance.")
    said.append(f"GPU time wasted by faults: {_in_both(both, 2)}.")
    for section in found.sections:
        if section.missing:
            said.append(f"{section.title}: not known, {section.missing}.")
        elif (top := section.largest) is not None:
            said.append(f"{section.title}: {_share(section, top, found)}.")
        else:
            said.append(f"{section.title}: no part differs by more than 1 % of the whole.")
    return said


def _share(section: Section, top: Line, found: Compared) -> str:
    name, change = _part_words(top.name).lower(), section.change(top)
    both = [found.before.recovery_time.seconds, found.after.recovery_time.seconds]
    if section.unit != "s" or None in both:
        both = [sum(line.before or 0.0 for line in section.lost), sum(line.after or 0.0 for line in section.lost)]
    whole = Line("", *both)
    share, of_all = top.change or 0.0, whole.change or 0.0
    if share * of_all < 0 or abs(share) > abs(of_all) / MOST:
        return f"{name} changed most, {change}, though the whole changed by {section.change(whole)}"
    if abs(share) >= MOST * abs(of_all):
        return f"most of it is {name}, {change}"
    return f"the largest part is {name}, {change} of {section.change(whole)}"


def _in_both(both: Sequence[Report], place: int) -> str:
    found = [view.lasting_figures(report)[place] for report in both]
    told = [each.detail if each.value == DASH else each.value.replace("Never", "never") for each in found]
    return f"{told[0]} in the first run, {told[1]} in the second"


def _part_words(name: str) -> str:
    head, comma, part = name.partition(", ")
    return words(head) + (f", {words(part).lower()}" if comma else "")


def to_json(found: Compared) -> dict[str, Any]:
    """Returns the comparison of two runs as JSON values, in seconds and GPU-seconds."""
    sections = {
        section.key: {
            "missing": section.missing,
            "largest": section.largest.name if section.largest else None,
            "lines": [{**vars(each), "change": each.change} for each in section.lines],
        }
        for section in found.sections
    }
    return {
        "schema": SCHEMA,
        "before": _json_run(found.before),
        "after": _json_run(found.after),
        "cautions": list(found.cautions),
        **sections,
    }


def _json_run(report: Report) -> dict[str, Any]:
    head = {"run_id": report.run_id, "scenario": report.scenario, "backend": report.backend, "commit": report.commit}
    figures = {"recovery_seconds": report.recovery_time.seconds}
    figures["waste_percent_by_faults"] = report.wasted_gpu_hours.percent_by_faults
    return head | {"verdict": report.verdict.value} | figures


def rows(section: Section) -> list[tuple[str, str, str, str]]:
    return [
        (_part_words(line.name), section.show(line.before), section.show(line.after), section.change(line))
        for line in section.shown[:ROWS_MAX]
    ]


def render(found: Compared) -> str:
    drawn = []
    for section in found.sections:
        bars = [(_part_words(line.name), line.before, line.after) for line in section.shown[:ROWS_MAX]]
        charts = [beside_chart(section.title, bars, section.show, narrow) for narrow in (False, True)] if bars else []
        more = max(0, len(section.shown) - ROWS_MAX)
        drawn.append({"section": section, "rows": rows(section), "charts": charts, "more": more})
    runs = [
        (label, each, *view.lasting_figures(each)[:3])
        for label, each in zip(LABELS, (found.before, found.after), strict=True)
    ]
    values = {"found": found, "runs": runs, "different": DIFFERENT, "sentences": sentences(found), "sections": drawn}
    return html_page.fill(f"{__package__}/comparison.jinja", with_script=True, **values)
