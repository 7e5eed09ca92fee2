"""Comparing with a baseline: how often it cries wolf, and how often it misses what matters, over thousands of gates."""

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.gate import t_distribution
from harness.gate.baseline_comparison import FOUND, Answer, Question, Success, compare, fisher, holm
from harness.judge.verdict import Verdict

GATES = {1: 600, 7: 150}  # by their scenarios: seven take seven times as long
RUNS = 5
Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]


def steady(share: float) -> Noise:
    """Recoveries of about 10 s that scatter by this share."""
    return lambda dice, count: 10 * np.exp(share * dice.standard_normal(count))


NOISES: dict[str, Noise] = {  # recoveries in seconds
    "3 %": steady(0.03),
    "7 %": steady(0.07),
    "10 %": steady(0.1),
    "15 %": steady(0.15),
    # One run in ten takes up to three times as long: a busy host.
    "disturbed": lambda dice, count: (
        steady(0.05)(dice, count) * np.where(dice.random(count) < 0.1, dice.uniform(1.3, 3, count), 1)
    ),
    # The failure is noticed at the next of the beats that come every 2 s; 8 s of work follow.
    "by heartbeat": lambda dice, count: 8 * np.exp(0.03 * dice.standard_normal(count)) + 2 * dice.random(count),
    "counted in beats": lambda dice, count: np.ceil(NOISES["by heartbeat"](dice, count)),  # told in whole seconds
    # Either 7 s or, in three of ten runs, 10 s: all five may agree by chance.
    "a beat or two": lambda dice, count: np.where(dice.random(count) < 0.3, 10.0, 7.0),
}


def gate(dice: np.random.Generator, noise: Noise, scenarios: int, slower: float = 1.0) -> list[Answer]:
    """A whole gate; the first scenario recovers `slower` times as slowly. Waste follows recovery, as it does."""
    questions = []
    for place in range(scenarios):
        before, now = noise(dice, RUNS), noise(dice, RUNS) * (slower if place == 0 else 1.0)
        waste = [tuple(2 * side * np.exp(0.03 * dice.standard_normal(RUNS))) for side in (before, now)]
        stall = [tuple(0.5 * np.exp(0.3 * dice.standard_normal(RUNS))) for _ in range(2)]
        questions.append(Question(str(place), "recovery_time", tuple(before), tuple(now), 0.1))
        questions.append(Question(str(place), "wasted_gpu_hours", waste[0], waste[1], 0.8))
        questions.append(Question(str(place), "checkpoint_stall", stall[0], stall[1], 0.8))
    return compare(questions, [Success(str(place), 0, RUNS, 0, RUNS) for place in range(scenarios)])


@functools.cache
def shares(noise: str, scenarios: int, slower: float) -> dict[Verdict, float]:
    """Which share of such gates is red (one figure fails), and which is green (all pass)."""
    dice = np.random.default_rng(20261122)
    found = [{each.verdict for each in gate(dice, NOISES[noise], scenarios, slower)} for _ in range(GATES[scenarios])]
    red, green = sum(Verdict.FAIL in each for each in found), sum(each == {Verdict.PASS} for each in found)
    return {Verdict.FAIL: red / len(found), Verdict.PASS: green / len(found)}


QUIET = ["3 %", "7 %", "10 %", "by heartbeat"]
SAME, HALF_AS_SLOW_AGAIN = 1.0, 1.5


@pytest.mark.slow  # hundreds of gates
@pytest.mark.parametrize(
    ("noise", "scenarios", "slower", "answer", "least", "most"),
    [
        *((noise, scenarios, SAME, Verdict.FAIL, 0, 0.05) for noise in NOISES for scenarios in (1, 7)),
        *((noise, 1, SAME, Verdict.PASS, 0.9, 1) for noise in (*QUIET, "disturbed")),
        *((noise, 1, HALF_AS_SLOW_AGAIN, Verdict.PASS, 0, 0.05) for noise in NOISES),
        *((noise, 1, HALF_AS_SLOW_AGAIN, Verdict.FAIL, 0.9, 1) for noise in (*QUIET, "counted in beats")),
        ("disturbed", 1, HALF_AS_SLOW_AGAIN, Verdict.FAIL, 0.8, 1),
        *((noise, 7, HALF_AS_SLOW_AGAIN, Verdict.FAIL, 0.9, 1) for noise in ("3 %", "7 %")),
    ],
)
def test_how_often_a_gate_is_red_or_green(
    noise: str, scenarios: int, slower: float, answer: Verdict, least: float, most: float
) -> None:
    """At five repeats. It seldom cries wolf, is green for the same stack, and finds what is half as slow again."""
    assert least <= shares(noise, scenarios, slower)[answer] <= most


def question(before: list[float], now: list[float], **more: object) -> Question:
    return Question("s", "recovery_time", tuple(before), tuple(now), **more)  # type: ignore[arg-type]


def answer(before: list[float], now: list[float], **more: object) -> Answer:
    return compare([question(before, now, **more)])[0]


def test_too_few_runs_and_a_doubt_are_never_green() -> None:
    found = answer([7.0, 7.1], [7.0, 7.1, 7.2])
    assert found.verdict is Verdict.INCONCLUSIVE and found.more == 3
    assert "2 runs in the baseline and 3 here; each side needs 3; about 3 more runs" in found.reason
    assert answer([], []).verdict is Verdict.INCONCLUSIVE
    found = answer([7.0] * 5, [7.0] * 5, doubt="one run tells no recovery")
    assert found.verdict is Verdict.INCONCLUSIVE and found.reason == "one run tells no recovery"
    before, now = [6.0, 9.0, 7.0, 12.0, 8.0], [7.0, 13.0, 9.0, 8.0, 11.0]
    wide = answer(before, now)
    assert wide.verdict is Verdict.INCONCLUSIVE and wide.more
    assert answer(before * 4, now * 4).verdict is not Verdict.INCONCLUSIVE, "so many more do"


def test_a_difference_too_small_to_matter_is_tolerated_and_shown() -> None:
    found = answer([10.0] * 30, [10.8] * 30)
    assert found.verdict is Verdict.PASS and found.ratio == pytest.approx(1.08)
    assert "1.08 × the baseline" in found.reason
    assert answer([0.01] * 5, [0.05] * 5).verdict is Verdict.FAIL
    assert answer([0.01] * 5, [0.05] * 5, offset=1.0).verdict is Verdict.PASS
    assert answer([0.0] * 5, [0.0] * 5).verdict is Verdict.INCONCLUSIVE
    assert answer([math.inf] * 5, [1.0] * 5).verdict is Verdict.INCONCLUSIVE


def test_more_comparisons_need_stronger_evidence() -> None:
    doubtful = question([10.0, 11.0, 9.0, 10.5, 9.5], [13.0, 14.5, 11.5, 12.5, 13.0])
    same = [question([10.0, 10.1, 9.9], [10.0, 10.1, 9.9])] * 200
    assert compare([doubtful])[0].verdict is Verdict.FAIL
    assert compare([doubtful, *same])[0].verdict is not Verdict.FAIL
    assert holm([0.01, 0.04, 0.03, 0.005], alpha=0.05) == [True, False, False, True]
    assert holm([]) == []


def test_success_is_compared_exactly() -> None:
    assert fisher(0, 5, 5, 5) == pytest.approx(1 / 252)
    assert fisher(1, 4, 3, 4) == pytest.approx(17 / 70)  # the lady tasting tea
    worse, same, somewhat = compare([], [Success("a", 0, 5, 5, 5), Success("b", 0, 5, 0, 5), Success("c", 0, 5, 1, 5)])
    assert (worse.verdict, same.verdict, somewhat.verdict) == (Verdict.FAIL, Verdict.PASS, Verdict.INCONCLUSIVE)
    twice = compare([], [Success("a", 0, 5, 0, 5), Success("a", 0, 5, 5, 5), Success("a", 0, 5, 1, 5)])
    assert [each.verdict for each in twice] == [Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE]
    assert worse.reason == "5 of 5 runs failed, in the baseline 0 of 5"


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.95, 1, 6.314), (0.95, 4, 2.132), (0.975, 8, 2.306), (0.99, 30, 2.457), (0.95, 1e6, 1.645), (0.5, 3, 0.0)],
)
def test_quantiles_of_t_are_those_of_the_tables(probability: float, freedom: float, value: float) -> None:
    assert t_distribution.quantile(probability, freedom) == pytest.approx(value, abs=6e-4)


@given(st.floats(-50, 50), st.floats(1, 200))
def test_both_tails_add_up(t: float, freedom: float) -> None:
    assert t_distribution.tail(t, freedom) + t_distribution.tail(-t, freedom) == pytest.approx(1)


times = st.lists(st.floats(0.5, 500), min_size=3, max_size=8)


@settings(deadline=None)
@given(times, times, st.floats(0.01, 100))
def test_neither_order_nor_unit_changes_the_answer(before: list[float], now: list[float], unit: float) -> None:
    first = answer(before, now)
    other = answer([unit * value for value in reversed(before)], [unit * value for value in sorted(now)])
    assert first.verdict is other.verdict and first.ratio == pytest.approx(other.ratio)


@settings(deadline=None)
@given(times, times, st.floats(1, 5))
def test_slower_runs_never_look_better(before: list[float], now: list[float], slower: float) -> None:
    assert (answer(before, [slower * value for value in now]).ratio or 0) >= (answer(before, now).ratio or 0) * 0.999


@settings(deadline=None)
@given(times, times)
def test_green_means_that_the_upper_bound_is_below_what_must_be_found(before: list[float], now: list[float]) -> None:
    found = answer(before, now)
    if found.verdict is Verdict.PASS:
        assert found.bounds is not None and found.bounds[1] <= FOUND * 1.0001
