"""Figures of the job as a whole: unmeasured is `None`, never 0."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import verdict
from mutants.bent import JOB, KILL
from simulator import simulate

from harness.report.figures import _whole

S = 1_000_000_000


def test_time_requeues_and_cost() -> None:
    run = verdict(simulate(JOB, KILL, seed=5)).evidence.run
    figures = _whole(run)
    assert figures["time_to_complete_seconds"] == (run.end - run.begin) / S
    assert figures["requeues_per_hour"] == 0.0 and figures["dollars_per_million_samples"] is None
    priced = replace(run, plan={**run.plan, "scenario": {**run.plan["scenario"], "price_per_gpu_hour": 3.6}})
    gpu_s = sum(slot.released - slot.allocated for slot in run.slots) / S
    steps = run.steps  # type: ignore[attr-defined]
    counted = {
        int(step): int(count) for step, count, kept in zip(steps.step, steps.count, steps.survives, strict=True) if kept
    }
    samples = float(sum(counted.values()))
    assert _whole(priced)["dollars_per_million_samples"] == pytest.approx(gpu_s * 1000 / samples)
    assert _whole(priced)["dollars_per_epoch"] is None, "nobody tells how many samples a pass has"
    epoch = _whole(replace(priced, data_sizes=[5000]))["dollars_per_epoch"]
    assert epoch == pytest.approx(gpu_s * 1000 / samples * 5000 / 1e6)


def test_a_job_that_did_not_complete_has_no_time_to_complete() -> None:
    run = verdict(simulate(JOB, KILL, seed=5)).evidence.run
    assert _whole(replace(run, outcome="interrupted"))["time_to_complete_seconds"] is None
