"""A week at scale in the report of a run: a section, and a sentence in dollars where the scenario has a price."""

import json
import pathlib
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from judging import verdict
from report_pages import Page
from simulator import Job, Outage, simulate
from stored_runs import store

from harness.campaign.wings import sections_of
from harness.forecast.run_section import section_of
from harness.judge.verdict import Verdict
from harness.report import html_page, markdown, run_report, write_reports
from harness.report.run_report import Report

PHASES = {"detect": 30.0, "startup": 200.0}


def report(tmp_path: pathlib.Path, price: float | None = None, **changes: Any) -> Report:
    store(tmp_path, "run", fault="node_loss", **{"phases": PHASES, "stall": 5.0} | changes)
    values = json.loads((tmp_path / "run" / "report.json").read_text())
    waste = values["scores"]["wasted_gpu_hours"]
    waste["dollars_wasted"] = price and price * waste["gpu_seconds_wasted"] / 3600
    return run_report.Report.from_json(values)


def test_a_price_makes_a_sentence_in_dollars_a_week(tmp_path: pathlib.Path) -> None:
    found = section_of(report(tmp_path, price=2.5))
    assert found is not None
    said = re.fullmatch(
        r"At 1,024 GPUs, a stack that recovers like this wastes \$([\d,]+) a week \(90 %: \$([\d,]+) to \$([\d,]+)\) at "
        r"\$2.50 a GPU-hour.",
        found.top,
    )
    assert said, found.top
    mean, low, high = (float(each.replace(",", "")) for each in said.groups())
    assert low < mean < high
    row = next(row for row in found.rows if row[0] == "1,024")
    assert float(row[3].replace(",", "")) * 2.5 == pytest.approx(mean, rel=1e-3)
    assert [row[0] for row in found.rows] == ["64", "1,024", "4,096"] and found.head[-1] == "dollars a week"


def test_a_slower_recovery_wastes_more_and_without_a_price_it_is_gpu_hours(tmp_path: pathlib.Path) -> None:
    slow = report(tmp_path / "slow", phases={"detect": 30.0, "startup": 3000.0})
    found, slower = section_of(report(tmp_path)), section_of(slow)
    assert found is not None and found.top == "" and "dollars a week" not in found.head
    assert slower is not None
    assert float(found.rows[1][3].replace(",", "")) < float(slower.rows[1][3].replace(",", ""))


@pytest.mark.parametrize(
    "changes", [{"verdict": "fail"}, {"verdict": "inconclusive"}, {"phases": {"startup": 1e308}}, {"stall": -1.0}]
)
def test_what_measured_nothing_that_counts_has_no_section(tmp_path: pathlib.Path, changes: dict[str, Any]) -> None:
    assert section_of(report(tmp_path, price=2.5, **changes)) is None


def test_a_report_with_very_many_recoveries_stays_small(tmp_path: pathlib.Path) -> None:
    episode = {"seconds": 1.0, "faults": ["evict"], "phases": {"startup": 1.0}}
    many = report(
        tmp_path,
        scores={"recovery_time": {"episodes": [episode] * 20_000}, "wasted_gpu_hours": {"gpu_seconds_wasted": 1.0}},
    )
    tracemalloc.start()
    try:
        assert section_of(many) is not None
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_both_pages_show_it(tmp_path: pathlib.Path) -> None:
    made = report(tmp_path, price=2.5)
    sections = sections_of(made)
    (only,) = sections
    page = Page(html_page.render(made, None, sections))
    assert page.text.index(only.top[:40]) < page.text.index("What happened") < page.text.index("a failure every")
    text = markdown.render(made, sections)
    assert "## A week at scale" in text and text.index(only.top[:20]) < text.index("## Expectations")
    assert "A week at scale" not in html_page.render(made) + markdown.render(made)


def test_the_reports_of_a_run_have_the_sections_of_the_wings(tmp_path: pathlib.Path) -> None:
    card = verdict(simulate(Job(), [Outage(after=12, kind="rank")], seed=1), expect={})
    written = write_reports(replace(card, verdict=Verdict.PASS), tmp_path, sections_of)
    for name, has_it in (("report.html", True), ("report.md", True), ("report.json", False)):
        assert ("A week at scale" in written[name].read_text()) is has_it, name
