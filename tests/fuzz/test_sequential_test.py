"""Wald's test: how often it is wrong, and how soon it ends."""

import random

import pytest

from harness.fuzz.sequential_test import ERROR, REPEATS_MAX, SequentialTest, at_the_rate_of

TRIES = 4000


def answers(rate: float, low: float, high: float) -> tuple[list[bool | None], float]:
    dice, found, repeats = random.Random(1), [], 0
    for _ in range(TRIES):
        test = SequentialTest(low, high)
        while not test.over:
            test.hear(dice.random() < rate)
        found.append(test.answer)
        repeats += test.repeats
    return found, repeats / TRIES


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.6), (0.125, 0.75), (0.15, 0.9), (0.05, 0.3)])
def test_each_error_is_as_rare_as_promised(low: float, high: float) -> None:
    wrong_yes, _ = answers(low, low, high)
    wrong_no, _ = answers(high, low, high)
    assert wrong_yes.count(True) / TRIES <= 1.2 * ERROR
    assert wrong_no.count(False) / TRIES <= 1.2 * ERROR


def test_what_always_fails_or_never_does_is_known_soon() -> None:
    assert answers(1.0, 0.1, 0.6) == ([True] * TRIES, 2)
    assert answers(0.0, 0.1, 0.6) == ([False] * TRIES, 4)
    _, mean = answers(0.3, 0.1, 0.6)
    assert 2 < mean < REPEATS_MAX


def test_a_smaller_schedule_is_asked_for_the_rate_of_the_whole_one() -> None:
    sure, flaky = at_the_rate_of(SequentialTest(failed=6)), at_the_rate_of(SequentialTest(failed=4, passed=10))
    assert (sure.low, sure.high) == pytest.approx((0.875 / 6, 0.875))
    assert flaky.high == pytest.approx(5 / 16)
