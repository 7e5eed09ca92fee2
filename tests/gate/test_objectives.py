"""Objectives over stored runs: too little evidence is never a pass, and a run that was not judged hides nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gate.objectives import Past, recovery_p95, runs_needed, success, waste
from harness.judge.score import Verdict


def past(
    verdict: Verdict = Verdict.PASS, recovery_s: float | None = 5.0, wasted: float | None = 1.0, at: float = 0
) -> Past:
    return Past("run", at, verdict, recovery_s, 10.0, wasted)


FAIL, PASS, DOUBT = past(Verdict.FAIL), past(), past(Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("runs", "answer"),
    [
        ([PASS] * 20, Verdict.PASS),
        ([PASS] * 19 + [FAIL], Verdict.PASS),
        ([PASS] * 18 + [FAIL] * 2, Verdict.FAIL),
        ([PASS] * 19, Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
        ([DOUBT] * 50, Verdict.INCONCLUSIVE),
        ([PASS] * 20 + [DOUBT] * 2, Verdict.INCONCLUSIVE),
        ([PASS] * 20 + [DOUBT], Verdict.PASS),
    ],
)
def test_success(runs: list[Past], answer: Verdict) -> None:
    assert success(runs, 95.0, 20).verdict is answer


@given(st.lists(st.sampled_from([FAIL, PASS, DOUBT, past(Verdict.INVALID)]), max_size=60), st.floats(1, 100))
def test_an_objective_that_is_met_is_still_met_if_all_doubts_were_failures(runs: list[Past], percent: float) -> None:
    if success(runs, percent, 20).verdict is Verdict.PASS:
        worst = [run if run.judged else FAIL for run in runs]
        assert success(worst, percent, 20).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("recoveries", "answer"),
    [
        ([5.0] * 20, Verdict.PASS),
        ([5.0] * 19 + [math.inf], Verdict.PASS),
        ([5.0] * 18 + [math.inf] * 2, Verdict.FAIL),
        ([5.0] * 19, Verdict.INCONCLUSIVE),
        ([None] * 40, Verdict.INCONCLUSIVE),
    ],
)
def test_recovery(recoveries: list[float | None], answer: Verdict) -> None:
    assert recovery_p95([past(recovery_s=each) for each in recoveries], 10.0, 20).verdict is answer


def test_failures_that_do_not_tell_their_recovery_are_doubt() -> None:
    runs = [PASS] * 20 + [past(Verdict.FAIL, None)] * 5
    assert recovery_p95(runs, 10.0, 20).verdict is Verdict.INCONCLUSIVE


def test_waste_and_its_burn_rate() -> None:
    old, new = [past(wasted=0.1)] * 40, [past(wasted=5.0, at=100.0)]
    met = waste(old, 10.0, 2.0, 50.0, 20)
    assert met.verdict is Verdict.PASS and met.observed == pytest.approx(1.0) and met.burn_rate is None
    burns = waste(old + new, 10.0, 2.0, 50.0, 20)
    assert burns.verdict is Verdict.FAIL and burns.burn_rate == pytest.approx(5.0)
    assert waste([past(wasted=2.0)] * 20, 10.0, 5.0, 50.0, 20).verdict is Verdict.FAIL
    assert waste(old[:20] + [past(wasted=None)] * 30, 10.0, 2.0, 50.0, 20).verdict is Verdict.INCONCLUSIVE


def test_a_rare_failure_needs_more_runs() -> None:
    assert [runs_needed(percent, 20) for percent in (50, 95, 99, 99.9, 100)] == [20, 20, 100, 1000, 20]
