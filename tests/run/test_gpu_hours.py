"""The cap on GPU time: it stops the job in order, and a stopped job proves nothing."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import verdict
from mutants.bent import JOB, KILL
from simulator import simulate

from harness.backends.contract import load_backend
from harness.campaign import experiment
from harness.cli.options import cap_of, labels_of
from harness.errors import UsageError
from harness.judge.score import Scorecard, Verdict
from harness.plan.making import make_plan
from harness.plan.model import Plan
from harness.run.gpu_hours import GpuCap
from harness.run.job import Outcome, RunningJob
from harness.run.stop import StopRequest
from harness.spec.scenario import parse_scenario

TEXT = "version: 1\nname: small\ntitle: A small one\nlabels: {team: vision}\nlimits: {gpu_hours: 0.5}\n"


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 10**12)), max_size=50))
def test_a_cap_is_reached_exactly_when_the_hours_are_used(rounds: list[tuple[int, int]]) -> None:
    cap = GpuCap(0.01, "limits")
    for gpus, lasted_ns in rounds:
        cap.book(gpus, lasted_ns)
    assert cap.reached == (sum(gpus * ns for gpus, ns in rounds) >= 36 * 10**9)


def test_the_plan_holds_the_cap_and_the_labels_and_reads_them_back() -> None:
    plan = make_plan(parse_scenario(TEXT, "small.yaml"), 1, "local", "small-1").labelled({"project": "x"})
    again = Plan.from_json(plan.to_json())
    assert again.limits.gpu_hours == 0.5 and again.scenario.labels == {"team": "vision", "project": "x"}
    assert again.scenario.file_digest is not None and len(again.scenario.file_digest) == 64


def test_a_plan_without_them_looks_as_before() -> None:
    values = make_plan(parse_scenario(TEXT.split("labels")[0], "a.yaml"), 1, "local", "small-1").to_json()
    assert "gpu_hours" not in values["limits"] and "labels" not in values["scenario"]


def test_a_capped_job_ends_as_one_that_was_interrupted() -> None:
    job = RunningJob.__new__(RunningJob)
    job._caps, job._booked_ns = [GpuCap(1.0, "limits"), GpuCap(0.001, "--max-gpu-hours")], 0
    job.plan = make_plan(parse_scenario(TEXT, "small.yaml"), 1, "local", "small-1")
    job.cluster = type("Two", (), {"nodes": [type("Node", (), {"alive": True})] * 2})()
    assert job._capped(10**9) is None
    outcome = job._capped(2 * 10**9)
    assert outcome == Outcome(
        "capped", "the cap of 0.001 GPU-hours (--max-gpu-hours) was reached, so the job was stopped"
    )
    assert outcome.told == "interrupted"


def test_no_further_run_begins_once_the_cap_is_reached(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card: Scorecard = replace(verdict(simulate(JOB, KILL, seed=5)), verdict=Verdict.INCONCLUSIVE)
    stop = StopRequest()
    stop.cap = GpuCap(1.0, "--max-gpu-hours")
    began = []

    def pretend(plan: Plan, *_: object) -> tuple[pathlib.Path, bool]:
        began.append(plan)
        assert stop.cap
        stop.cap.book(1, 3600 * 10**9)
        return tmp_path, False

    monkeypatch.setattr(experiment, "run_experiment", pretend)
    monkeypatch.setattr(experiment, "load_evidence", lambda _: card.evidence)
    monkeypatch.setattr(experiment, "judge", lambda *_: card)
    monkeypatch.setattr(experiment, "write_reports", lambda *_: {})
    plan = make_plan(parse_scenario(TEXT, "small.yaml"), 1, "local", "small-1")
    cards, interrupted = experiment.run_repeatedly([plan] * 3, tmp_path, load_backend("local"), stop=stop)
    assert len(began) == len(cards) == 1 and not interrupted


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cap_must_be_above_zero(hours: float) -> None:
    with pytest.raises(UsageError, match="--max-gpu-hours"):
        cap_of(hours)


@pytest.mark.parametrize("text", ["team", "=x", "team=", "te am=x", "team=a\nb"])
def test_a_label_is_a_key_and_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="--label"):
        labels_of([text])


def test_labels_of_the_command_line() -> None:
    assert labels_of(["team=vision", "project=a=b"]) == {"team": "vision", "project": "a=b"}
