"""Several runs as one verdict: flaky stacks are named, and too few runs are said to be too few."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging import struck, verdict
from mutants.bent import BROKEN, JOB, KILL
from scorecards import assert_verdict
from simulator import Logs, simulate

from harness.campaign.repeats import repeat_verdict
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Verdict


@pytest.fixture(scope="module")
def good() -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5))


@pytest.fixture(scope="module")
def bad() -> Scorecard:
    return BROKEN[0].judge()


def using(card: Scorecard, share: float) -> Scorecard:
    """The same run, having used this share of a bound."""
    line = Expectation("recovery_time.max", "≤ 10 s", f"{10 * share} s", Verdict.PASS, share=share)
    return replace(card, expectations=[line])


def test_one_run_speaks_for_itself_and_without_a_verdict_the_whole_has_none(good: Scorecard, bad: Scorecard) -> None:
    assert repeat_verdict([good]).verdict is Verdict.PASS
    assert repeat_verdict([bad]).reasons == tuple(bad.reasons)
    doubtful = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["no fault-free run"])
    found = repeat_verdict([good, good, doubtful])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == ("1 of 3 runs is inconclusive: no fault-free run",)


def test_a_stack_that_fails_now_and_then_is_flaky_and_one_that_always_fails_is_not(
    good: Scorecard, bad: Scorecard
) -> None:
    found = repeat_verdict([good] * 9 + [bad])
    assert found.verdict is Verdict.FAIL
    assert found.reasons[0].startswith("flaky: 1 of 10 runs failed; with 95 % confidence, between 0.3 % and 44.5 %")
    assert found.reasons[1] == bad.reasons[0]
    assert repeat_verdict([bad] * 3).reasons[0] == "3 of 3 runs failed, and none passed"


def test_how_far_figures_are_from_their_bound_decides(good: Scorecard) -> None:
    found = repeat_verdict([using(good, share) for share in (0.14, 0.15, 0.16, 0.15, 0.14)])
    assert_verdict(found, Verdict.PASS, first="fewer than 45 % of all runs fail")
    assert found.assessments["recovery_time.max"].tail < 0.25
    found = repeat_verdict([using(good, share) for share in (0.3, 0.5, 0.8)])
    assert found.verdict is Verdict.INCONCLUSIVE
    more = found.assessments["recovery_time.max"].more
    assert more and f"about {more} more runs would settle it" in found.reasons[0]
    found = repeat_verdict([using(good, share) for share in (0.8, 0.99, 0.95, 0.9, 0.99)])
    assert_verdict(found, Verdict.INCONCLUSIVE, first="more runs would not help")


def test_a_bound_that_the_scenario_does_not_set_has_no_tail(good: Scorecard) -> None:
    def leaving(share: float) -> Scorecard:
        line = Expectation("exit_time.max", "≤ 30 s", f"{30 * share} s", Verdict.PASS, share=share)
        return replace(good, expectations=[line])

    assert "exit_time" not in good.evidence.run.plan["expect"]
    assert_verdict(repeat_verdict([leaving(share) for share in (0.1, 0.13, 0.24)]), Verdict.PASS)


def test_figures_of_several_runs_are_ranges(good: Scorecard) -> None:
    def run(took_s: float | None, untold: dict[str, str]) -> Scorecard:
        scores = {"recovery_time": {"seconds": took_s}, "wasted_gpu_hours": {"percent_by_faults": 30.04}}
        return replace(good, scores=scores, not_judged=untold, expectations=[])

    runs = [run(6.9, {"pace": "a"}), run(5.6, {"pace": "a"}), run(7.5, {"exits": "b"})]
    told = "recovered in 5.60 s to 7.50 s; 30.0 % of GPU time wasted by faults; not judged: pace, exits"
    assert repeat_verdict(runs).reasons[1:] == (told,)
    assert repeat_verdict([*runs, run(None, {})]).reasons[1].startswith("30.0 % of GPU time wasted by faults")


def test_a_run_in_which_nothing_slowed_down_does_not_hide_those_near_the_bound(good: Scorecard) -> None:
    def unharmed(logs: Logs) -> None:
        struck(logs, "slow", logs.harness[-1]["mono_ns"] - 10**9, healed=logs.harness[-1]["mono_ns"] - 10**9 + 1)

    calm = verdict(simulate(JOB, seed=5), unharmed, expect={"recovery_time": {"max": "10s"}})
    assert calm.verdict is Verdict.PASS
    found = repeat_verdict([*(using(good, share) for share in (0.95, 0.99, 0.97, 0.98)), calm])
    assert_verdict(found, Verdict.INCONCLUSIVE, first="recovery_time.max")
