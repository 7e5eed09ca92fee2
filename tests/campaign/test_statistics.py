"""Several runs as one verdict, and figures over them: published vectors, and what must hold for any values."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import struck, verdict
from mutants.bent import BROKEN, JOB, KILL
from scorecards import assert_verdict
from simulator import Logs, simulate

from harness.campaign import repeats
from harness.campaign.repeats import repeat_verdict
from harness.judge.score import Expectation, Scorecard
from harness.judge.verdict import Verdict

FIGURES = st.lists(st.floats(0.1, 1e4), min_size=2, max_size=30)


def test_tolerance_factors_are_the_published_ones_and_fall_with_every_run() -> None:
    for runs, factor in ((2, 20.581), (5, 3.407), (10, 2.355), (20, 1.926), (30, 1.777), (50, 1.646)):
        assert repeats.tolerance_factor(runs) == pytest.approx(factor, rel=0.01)
    factors = [repeats.tolerance_factor(runs) for runs in range(1, 200)]
    assert factors == sorted(set(factors), reverse=True)
    assert factors[-1] > 1.2816, "no fewer than 90 % of a normal population lie below"


@pytest.mark.parametrize("runs", [*range(2, 12), 20, 50])
def test_a_tolerance_factor_covers_what_it_says(runs: int) -> None:
    """In 95 % of normal samples mean plus so many deviations is above the 90th percentile; by integration."""
    width = 1e-3
    deviation = np.arange(width / 2, 8, width)
    free = runs - 1
    constant = math.log(2) + free / 2 * math.log(free / 2) - math.lgamma(free / 2)
    density = np.exp(constant + (free - 1) * np.log(deviation) - free * deviation**2 / 2)
    normal = NormalDist()
    factor, ninetieth = repeats.tolerance_factor(runs), normal.inv_cdf(0.9)
    above = [normal.cdf(math.sqrt(runs) * (factor * d - ninetieth)) for d in deviation.tolist()]
    covered = float(np.sum(density * above)) * width
    assert covered == pytest.approx(0.95, abs=1e-4 if runs <= 10 else 5e-3), "an approximation beyond ten"


def test_the_tail_bound_keeps_its_promise() -> None:
    """It covers 90 % of a lognormal population in about 95 % of samples; seeded, so always the same."""
    dice = random.Random(1)
    ninetieth = math.exp(1.2815515655446004 * 0.3)
    samples = [[math.exp(dice.gauss(0, 0.3)) for _ in range(6)] for _ in range(3000)]
    covered = sum(repeats.tail_bound(sample) >= ninetieth for sample in samples)
    assert covered / len(samples) == pytest.approx(0.95, abs=0.012)


@settings(max_examples=50, deadline=None)
@given(FIGURES)
def test_the_interval_holds_the_median_and_the_tail_is_above(values: list[float]) -> None:
    found = repeats.assess(values)
    low, high = found.interval
    assert min(values) <= low <= found.median <= high <= max(values)
    assert found.tail >= math.exp(sum(map(math.log, values)) / len(values)) * (1 - 1e-9)


@settings(max_examples=50, deadline=None)
@given(FIGURES, st.floats(1, 10))
def test_a_stricter_bound_never_turns_out_into_within(values: list[float], looser: float) -> None:
    assert repeats.assess(values).within <= repeats.assess([value / looser for value in values]).within


@settings(max_examples=30, deadline=None)
@given(FIGURES, st.floats(1, 1e5))
def test_the_further_runs_it_asks_for_settle_it(values: list[float], limit: float) -> None:
    found = repeats.assess([value / limit for value in values])
    if found.more:
        logs = [math.log(value) for value in values]
        mean = sum(logs) / len(logs)
        spread = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
        runs = len(values) + found.more
        assert mean + repeats.tolerance_factor(runs) * spread <= math.log(limit)


def test_the_interval_of_the_median_is_always_the_same() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0, 5.5, 3.5]
    assert repeats.median_interval(values) == pytest.approx((2.0, 5.5))
    assert repeats.median_interval([4.0]) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("values", "limit"),
    [([1.0, 1.3, 1.1], 1.9), ([1.0, 1.3, 1.1], 2.0), ([2.0, 2.9], 4.0), ([0.0, 2.0, 1.0], 3.5)],
)  # fmt: skip
def test_no_fewer_runs_than_it_asks_for_would_settle_it(values: list[float], limit: float) -> None:
    """By the definition: the first number of runs at which mean and scatter like these stay within the limit."""
    shares = [value / limit for value in values]
    found, logs = repeats.assess(shares), min(values) > 0
    scale = [math.log(share) for share in shares] if logs else shares
    room = ((0 if logs else 1) - fmean(scale)) / stdev(scale)
    runs = next(n for n in range(2, 1000) if repeats.tolerance_factor(n) <= room)
    assert found.within == (runs <= len(values))
    assert found.more == max(0, runs - len(values))
    assert not found.within


def test_figures_with_a_zero_are_taken_as_they_are_one_bounds_nothing_and_no_number_settles_what_is_over() -> None:
    assert repeats.tail_bound([0.0, 0.0, 0.0]) == 0.0
    assert repeats.tail_bound([0.0, 2.0]) == pytest.approx(1 + 20.581 * math.sqrt(2))
    found = repeats.assess([0.0, 0.0, 0.0])
    assert found.within and found.more == 0
    one = repeats.assess([0.1])
    assert not one.within and one.tail == math.inf and one.more == 2
    for shares in ([2.0, 4.0], [1.1, 1.25, 1.5], [0.0, 1.0, 3.0]):
        assert repeats.assess(shares).more is None


@pytest.mark.parametrize("failures", [0, 1, 5, 9, 10])
def test_the_interval_of_a_rate_is_that_of_the_binomial_tails_and_the_published_one(failures: int) -> None:
    def chance(most: int, rate: float) -> float:
        return sum(math.comb(10, k) * rate**k * (1 - rate) ** (10 - k) for k in range(most + 1))

    low, high = repeats.failure_interval(failures, 10)
    assert low == 0 if failures == 0 else chance(failures - 1, low) == pytest.approx(0.975)
    assert high == 1 if failures == 10 else chance(failures, high) == pytest.approx(0.025)
    assert chance(0, repeats.failure_bound(10)) == pytest.approx(0.05)
    assert repeats.failure_interval(1, 10) == pytest.approx((0.0025, 0.4450), abs=1e-4)
    assert repeats.failure_bound(59) == pytest.approx(0.0495, abs=1e-4), "59 good runs: below 5 %"


@pytest.fixture(scope="module")
def good() -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5))


@pytest.fixture(scope="module")
def bad() -> Scorecard:
    return BROKEN[0].judge()


def using(card: Scorecard, share: float, bound: str = "recovery_time.max") -> Scorecard:
    """The same run, having used this share of a bound."""
    line = Expectation(bound, "≤ 10 s", f"{10 * share} s", Verdict.PASS, share=share)
    return replace(card, expectations=[line])


def test_one_run_speaks_for_itself_and_a_stack_that_fails_now_and_then_is_flaky(
    good: Scorecard, bad: Scorecard
) -> None:
    assert repeat_verdict([good]).verdict is Verdict.PASS
    assert repeat_verdict([bad]).reasons == tuple(bad.reasons)
    doubtful = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["no fault-free run"])
    found = repeat_verdict([good, good, doubtful])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == ("1 of 3 runs is inconclusive: no fault-free run",)
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
    assert "exit_time" not in good.evidence.run.plan["expect"], "a bound that the scenario does not set has no tail"
    leaving = [using(good, share, "exit_time.max") for share in (0.1, 0.13, 0.24)]
    assert_verdict(repeat_verdict(leaving), Verdict.PASS)

    def unharmed(logs: Logs) -> None:
        struck(logs, "slow", logs.harness[-1]["mono_ns"] - 10**9, healed=logs.harness[-1]["mono_ns"] - 10**9 + 1)

    calm = verdict(simulate(JOB, seed=5), unharmed, expect={"recovery_time": {"max": "10s"}})
    assert calm.verdict is Verdict.PASS
    found = repeat_verdict([*(using(good, share) for share in (0.95, 0.99, 0.97, 0.98)), calm])
    assert_verdict(found, Verdict.INCONCLUSIVE, first="recovery_time.max"), "nothing slowed down, and it hides none"


def test_figures_of_several_runs_are_ranges(good: Scorecard) -> None:
    def run(took_s: float | None, untold: dict[str, str], wasted: float | None = 30.04) -> Scorecard:
        scores = {"recovery_time": {"seconds": took_s}, "wasted_gpu_hours": {"percent_by_faults": wasted}}
        return replace(good, scores=scores, not_judged=untold, expectations=[])

    runs = [run(6.9, {"pace": "a"}), run(5.6, {"pace": "a"}), run(7.5, {"exits": "b"})]
    told = "recovered in 5.60 s to 7.50 s; 30.0 % of GPU time wasted by faults; not judged: pace, exits"
    assert repeat_verdict(runs).reasons[1:] == (told,)
    assert repeat_verdict([*runs, run(None, {})]).reasons[1].startswith("30.0 % of GPU time wasted by faults")
