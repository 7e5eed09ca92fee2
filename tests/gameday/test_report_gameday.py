"""The report of a game day: its headline names what its rehearsals did not judge, in the words of the other reports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from gameday.test_gameday_verdict import card, day, rehearsed, verdict_of
from report_pages import Page

from harness.gameday import day_report
from harness.gameday.day_plan import DayPlan
from harness.gameday.day_verdict import DayResult, Expected
from harness.judge.score import Expectation, Verdict
from harness.plan.model import Plan

JOB = Plan.model_construct(run_id="day-1", backend="local")
DAY = DayPlan.model_construct(name="plan", title="A day", seed=1, job=JOB)


def result_of(verdict: Verdict = Verdict.PASS, reason: str = "recovered in 2 s") -> DayResult:
    cards = {
        "a": replace(card(), not_judged={"pace": "x", "loss": "y"}),
        "b": replace(
            card(verdict),
            not_judged={"pace": "x"},
            reasons=[reason],
            expectations=[Expectation("loss_continuity.mode", "exact", "–", verdict)],
        ),
    }
    events = day(rehearsed("a", 10), rehearsed("b", 50))
    return verdict_of(events, Expected("a", 0), Expected("b", 1), cards=cards)


def test_a_day_that_passed_names_in_its_headline_what_was_not_judged() -> None:
    files = day_report.render(DAY, result_of())
    told = "not judged in one rehearsal or more: pace, loss"
    assert json.loads(files["gameday-report.json"])["reasons"][0].endswith(told)
    assert told in files["report.md"].splitlines()[0]
    assert "All 2 rehearsals passed" in Page(files["report.html"]).text and told in Page(files["report.html"]).text


def test_a_day_that_failed_names_it_below_its_headline() -> None:
    files = day_report.render(DAY, result_of(Verdict.FAIL, "loss_continuity.mode: 3 steps differ"))
    reasons = json.loads(files["gameday-report.json"])["reasons"]
    assert reasons[0] == "b: loss_continuity.mode: 3 steps differ"
    assert reasons[-1] == "not judged in one rehearsal or more: pace, loss"
    text = Page(files["report.html"]).text
    assert text.count("Loss continuity, mode: 3 steps differ") == 2, "the headline and the scorecard"
    assert "loss_continuity" not in text


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_nothing_is_added_where_all_was_judged(verdict: Verdict) -> None:
    result = verdict_of(day(rehearsed("a", 10)), Expected("a", 0), cards={"a": card(verdict)})
    assert "not judged in" not in day_report.render(DAY, result)["report.md"]


def test_the_waste_of_the_whole_day_is_told() -> None:
    booked = {"gpu_seconds_wasted": 86.0, "gpu_seconds_allocated": 344.0, "percent": 25.0}
    job = replace(card(), scores={"wasted_gpu_hours": booked | {"gpu_seconds_wasted_by_faults": 21.3}})
    files = day_report.render(DAY, replace(result_of(), job=job))
    told = "Wasted in the whole day: 86.0 GPU-s of 344.0 GPU-s (25.0 %), 21.3 GPU-s of it by faults."
    assert told in files["report.md"] and told in Page(files["report.html"]).text.replace("\u00a0", " ")
    assert "Wasted in the whole day" not in day_report.render(DAY, replace(result_of(), job=None))["report.md"]
