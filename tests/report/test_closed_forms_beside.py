"""A run beside the closed forms: the rates are the run's own, and with many random failures the two come together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from judging import Bend, fault_free_of, verdict
from simulator import Job, Logs, Outage, remove, simulate, steps

from harness.judge.score import Scorecard
from harness.report import figures as figures_of
from harness.report import html_page, markdown, run_report
from harness.theory import closed_forms

JOB = Job(nodes=2, steps=600, every=30)
FAULT_FREE = fault_free_of(JOB)


KILLED_TWICE = [Outage(47, "rank"), Outage(90, "rank")]


def run(outages: list[Outage], bend: Bend = lambda logs: None) -> Scorecard:
    return verdict(simulate(JOB, outages, 3), bend, expect={}, fault_free=FAULT_FREE)


def found(card: Scorecard) -> dict[str, Any]:
    return figures_of.scores(card)["wasted_gpu_hours"]["closed_forms"]


def test_the_rates_are_the_run_s_own() -> None:
    history, values = simulate(JOB, KILLED_TWICE, 3), found(run(KILLED_TWICE))
    first, second = history.truth.episodes
    lost = [e.phases.get("recompute", 0) + e.phases.get("interrupted_step", 0) for e in (first, second)]
    whole = [e.t_regained - e.t_stop for e in (first, second)]
    steps = history.truth.rows
    span = (max(row.end for row in steps) - min(row.begin for row in steps)) / 1e9
    assert values["failures"] == 2 and values["mean_time_to_failure_s"] == pytest.approx(span / 2)
    assert values["lost_s"] == pytest.approx(sum(lost) / 2e9)
    assert values["restart_s"] == pytest.approx((sum(whole) - sum(lost)) / 2e9)
    assert values["interval_s"] == pytest.approx(30 * 0.048, rel=0.2)
    stalls = sum(row.checkpoint_ns for row in steps if row.survives) / 2 / 1e9
    assert values["checkpoint_s"] == pytest.approx(stalls / 20)
    rates = (1 / values["mean_time_to_failure_s"], values["restart_s"], values["interval_s"], values["checkpoint_s"])
    assert values["ettr_expected"] == closed_forms.expected_ettr(*rates)
    assert values["lost_s_expected"] == values["interval_s"] / 2
    best = values["checkpoint_s"], values["mean_time_to_failure_s"]
    assert values["interval_s_young"] == closed_forms.young_interval_s(*best)
    assert values["interval_s_daly"] == closed_forms.daly_interval_s(*best)


def test_who_tells_no_wait_for_a_save_gets_no_best_interval() -> None:
    def silent(logs: Logs) -> None:
        for step in logs.steps():
            del step["checkpoint_ns"]

    card = run(KILLED_TWICE, silent)
    values = found(card)
    assert values["ettr_expected"] is not None
    assert [values[name] for name in ("checkpoint_s", "interval_s_young", "interval_s_daly")] == [None, None, None]
    text = markdown.render(run_report.from_scorecard(card))
    assert "a checkpoint that stops training for an unknown time" in text and "Young 0" not in text


def test_a_trainer_that_tells_every_fifth_step_saves_as_often() -> None:
    def sparse(logs: Logs) -> None:
        for lines in logs.trainers():
            lines[:] = [line for line in lines if line.get("event") != "step" or line["step"] % 5 == 0]

    assert found(run(KILLED_TWICE, sparse))["interval_s"] == pytest.approx(30 * 0.048, rel=0.2)


def test_many_random_failures_cost_what_the_closed_form_says() -> None:
    dice = random.Random(7)
    values = found(run([Outage(dice.randrange(60, 120), "rank", victim=n % 2) for n in range(6)]))
    assert values["failures"] == 6
    assert values["lost_s"] == pytest.approx(values["lost_s_expected"], rel=0.5)
    assert values["ettr"] == pytest.approx(values["ettr_expected"], abs=0.08)


def test_the_reports_show_both_and_expect_nothing_without_a_failure() -> None:
    card = run([Outage(47, "rank")])
    for text in (markdown.render(run_report.from_scorecard(card)), html_page.render(run_report.from_scorecard(card))):
        assert "Compared with closed forms" in text and "half an interval" in text
        assert "fault-free run at 2 ranks" in text.replace("\xa0", " ")
    card = run([])
    assert found(card)["failures"] == 0 and found(card)["ettr_expected"] is None
    assert "closed form" not in markdown.render(run_report.from_scorecard(card))


def test_only_failures_that_were_recovered_from_are_counted() -> None:
    """One never was, and one struck before the first step: neither says what a failure costs."""

    def stops(logs: Logs) -> None:
        last = max(line["mono_ns"] for lines in logs.trainers() for line in steps(lines, 171, 171))
        for lines in logs.trainers():
            remove(lines, lambda line: line["mono_ns"] > last)
        logs.harness[-1].update(outcome="aborted", reason="no step")

    card = run([Outage(47, "rank")], stops)
    assert len(card.evidence.run.episodes) == 2 and card.evidence.run.episodes[-1].t_regained is None
    assert found(card)["failures"] == 1
