"""History: changes of level are found and not invented, and the page shows them."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import Page, moment, risen

from harness.gate import history_report
from harness.gate.change_points import changes
from harness.gate.history_report import render, series_of, to_json
from harness.gate.trend_chart import Point, sparkline, trend_chart
from harness.judge.verdict import Verdict


def test_a_change_of_level_is_found_at_its_place() -> None:
    (one,) = series_of(risen())
    (found,) = one.changes("recovery_s")
    assert found.at == 20 and found.ratio == pytest.approx(1.5, abs=0.1)
    told = history_report.change_words(one, "recovery_s", found)
    assert told.startswith("Recovery time changed from 7.") and "with spot-evict-20, commit 00000004" in told


def test_changes_of_level_are_found_in_order_and_one_from_nothing_has_no_ratio() -> None:
    level = [1.0, 1.02, 0.98, 1.03, 1.0, 1.01, 1.04, 0.97, 0.99, 1.05]
    found = changes([7 * each for each in level] + [10 * each for each in level] + [15 * each for each in level])
    assert [each.at for each in found] == pytest.approx([10, 20], abs=1)
    assert [each.ratio for each in found] == pytest.approx([10 / 7, 1.5], rel=0.03)
    (one,) = series_of([moment(i, 0.0 if i < 8 else 10.0) for i in range(16)])
    (only,) = one.changes("recovery_s")
    told = history_report.change_words(one, "recovery_s", only)
    assert "to 10.00 s with" in told and "inf" not in told and "×" not in told


def test_noise_and_one_disturbed_run_are_hardly_ever_a_change() -> None:
    dice = np.random.default_rng(7)
    marked = sum(bool(changes(list(7 * np.exp(0.1 * dice.standard_normal(40))))) for _ in range(400))
    assert marked / 400 <= 0.05
    assert changes([7.0, 7.1, 6.9, 7.2, 60.0, 7.0, 7.1, 6.9, 7.2, 7.0, 7.1, 6.8]) == []


@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_changes_are_in_order_and_inside(values: list[float]) -> None:
    places = [each.at for each in changes(values)]
    assert places == sorted(set(places)) and all(4 <= at <= len(values) - 4 for at in places)


def test_runs_are_grouped_by_scenario_profile_and_backend_and_the_schema_is_stable() -> None:
    made = [moment(0, 7.0), moment(1, 7.0, backend="docker"), moment(2, 7.0, profile="cluster"), moment(3, 7.0)]
    found = [(one.name, one.backend, len(one.moments)) for one in series_of(made)]
    assert found == [("spot-evict", "docker", 1), ("spot-evict", "local", 2), ("spot-evict (cluster)", "local", 1)]
    values = json.loads(json.dumps(to_json(risen())))
    assert values["schema"] == 1 and values["runs"][0]["run_id"] == "spot-evict-34", "newest first"
    keys = "after backend before commit figure first_run p profile ratio scenario"
    assert sorted(values["changes"][0]) == keys.split()


def test_a_run_that_never_recovered_stands_above_the_chart_and_counts_for_no_level() -> None:
    made = [moment(i, 7.0) for i in range(3)] + [moment(3, None, never=True, verdict=Verdict.FAIL)]
    (one,) = series_of(made)
    assert [one.value(each, "waste_percent") for each in one.moments] == [14.0, 14.0, 14.0, None]
    source = render(made)
    assert "spot-evict-3\nfail: never\n" in source and "spot-evict-3\nfail: no step\n" in source
    assert source.count(">never</text>") == source.count(">no step</text>") == 2, "wide and narrow"
    heights = [float(at) for at in re.findall(r'd="M[\d.]+ ([\d.]+)m-4 -4[^"]*" class="mark-fail"', source)]
    assert heights == [32.0] * 4
    assert ">never</text>" not in render([moment(0, 7.0), moment(1, None, verdict=Verdict.INCONCLUSIVE, never=True)])


def test_a_run_without_a_value_stands_below_the_axis_and_not_at_nought() -> None:
    points = [Point(value, "inconclusive", "", "", "") for value in (7.0, 0.0, None, math.nan)]
    drawn = trend_chart("t", points, [], str, "")
    seven, nought, *unknown = (float(at) for at in re.findall(r'd="M[\d.]+ ([\d.]+)m[^"]*" class="mark-', drawn))
    (row,) = (float(at) for at in re.findall(r'y="([\d.]+)"[^>]*>\?</text>', drawn))
    assert seven < nought and len(set(unknown)) == 1 and nought + 10 < unknown[0] == row - 4
    assert ">?</text>" not in trend_chart("t", points[:2], [], str, ""), "no row where all is known"


def test_the_days_are_below_the_axis() -> None:
    source = render([moment(i, 7.0) for i in range(48)])
    assert all(f">2026-09-{day}</text>" in source for day in (21, 22, 23))
    drawn = trend_chart("t", [Point(1.0, "pass", "", f"2026-09-{i // 24 + 1:02}", "") for i in range(49)], [], str, "")
    last = re.findall(r'<text x="([\d.]+)"[^>]*>2026-09-03</text>', drawn)
    assert last and float(last[0]) + 60 <= 1080, "the last one is not clipped"


def test_the_page_is_whole_loads_nothing_and_what_a_run_is_called_is_never_markup() -> None:
    source = render(risen(), "spot-evict")
    page = Page(source)
    assert page.open == [] and "http://" not in source and "https://" not in source
    assert "Recovery time changed from" in page.text and "History of spot-evict" in page.text
    assert source.count('class="mark-fail"') >= 2 and "spot-evict-25" in page.text
    assert "No judged run matches" in Page(render([])).text
    evil = "<script>alert(1)</script>\x1b\u202e"
    source = render([moment(0, 7.0, run_id=evil, commit=evil, headline=evil, scenario=evil)], evil)
    assert "<script>alert" not in source and not {"\x1b", "\u202e"} & set(source)


def test_all_series_come_first_and_fewer_than_three_values_have_no_chart() -> None:
    made = [*risen(), *(moment(i, 3.0 + i, scenario="oom", run_id=f"oom-{i}") for i in range(2))]
    source = render(made)
    text = Page(source).text
    assert text.index("All series") < text.index("32 pass, 1 inconclusive, 1 invalid, 1 fail") < text.index("2 runs")
    assert source.count('class="sparkline"') == 4 and source.count('href="#series-') == 3, "with the one to skip there"
    assert source.count("chart wide") == 2, "none for two runs"
    drawn = re.findall(r'd="([^"]*)"', sparkline([1.0, None, 1.0, 1e300, math.inf], "x"))
    assert drawn and all(0 <= float(each) <= 100 for each in re.findall(r"[\d.]+", drawn[0]))


def test_a_series_says_how_many_runs_it_left_out_and_draws_no_axis_without_a_value() -> None:
    for runs, said in ((1, "The run"), (200, "All 200 runs"), (1201, "newest 200 of 1,201 runs")):
        assert said in Page(render([moment(i, 7.0, run_id=f"run-{i}") for i in range(runs)])).text
    text = Page(render([moment(0, None, verdict=Verdict.INCONCLUSIVE)])).text
    assert "–" in text and "Median of a stretch" not in text
    assert 'class="grid"' not in render([moment(0, None, never=True, verdict=Verdict.FAIL)]), "it would be made up"
