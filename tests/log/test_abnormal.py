"""What is abnormal: each rule at its limit, and nothing said of a training that is as it should be."""

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from harness.log.vocabulary import ANOMALIES
from harness.node.emitter import abnormal
from harness.node.emitter.abnormal import Watch

LOSS = abnormal.LOSS_RECENT_STEPS + abnormal.LOSS_BEFORE_STEPS


def test_a_loss_that_improves_by_less_than_two_percent_stagnates() -> None:
    before = [5.0] * abnormal.LOSS_BEFORE_STEPS
    assert abnormal.loss_stagnates([*before, *[4.91] * 50])
    assert not abnormal.loss_stagnates([*before, *[4.89] * 50])
    assert not abnormal.loss_stagnates([5.0] * (LOSS - 1)), "too few steps to say"
    assert abnormal.loss_improvement([*before, *[4.0] * 50]) == 0.2
    assert abnormal.loss_improvement([0.0] * LOSS) is None


def test_a_gradient_norm_a_pace_and_waits_have_their_limits() -> None:
    usual = [1.0] * abnormal.NORMS_MIN
    assert abnormal.gradient_spikes(10.1, usual) and abnormal.gradient_spikes(float("inf"), usual)
    assert not abnormal.gradient_spikes(10.0, usual) and not abnormal.gradient_spikes(99, usual[1:])
    assert abnormal.steps_are_slow([1.0] * 100 + [1.16] * 50)
    assert not abnormal.steps_are_slow([1.0] * 100 + [1.14] * 50)
    assert not abnormal.steps_are_slow([1.0] * 100 + [1.0] * 30 + [9.0] * 20), "some pauses are no slow pace"
    assert abnormal.waits_for_data([0.11] * 50, [1.0] * 50) and not abnormal.waits_for_data([0.1] * 50, [1.0] * 50)
    assert abnormal.checkpoint_is_late(41, 20) and not abnormal.checkpoint_is_late(40, 20)


def told(losses: list[float], norms: list[float], times: list[float], waits: list[float]) -> dict[int, list[str]]:
    watch = Watch()
    steps = enumerate(zip(losses, norms, times, waits, strict=True), 1)
    return {step: found for step, row in steps if (found := watch.step_done(*row))}


def test_what_lasts_is_told_once_in_fifty_steps() -> None:
    n = 200
    assert told([5.0] * n, [1.0] * n, [1.0] * n, [0.0] * n) == {150: ["stagnation"], 200: ["stagnation"]}
    falling = [5.0 * 0.99**step for step in range(n)]
    assert told(falling, [1.0] * n, [1.0] * n, [0.0] * n) == {}
    norms = [1.0] * n
    norms[89] = 11.0
    assert told(falling, norms, [1.0] * n, [0.0] * n) == {90: ["gradient"]}
    assert told(falling, [1.0] * n, [1.0] * 150 + [2.0] * 50, [0.0] * 150 + [1.0] * 50) == {200: ["slow", "data_wait"]}


@given(st.integers(0, 400), st.sampled_from([1.0, 20.0]), st.sampled_from([1, 2]))
def test_a_replay_of_the_last_steps_finds_what_was_found(count: int, last_norm: float, slower: int) -> None:
    rows = [(5.0, 1.0 + n % 3, 10 * (slower if n > 250 else 1), n % 4) for n in range(count)]
    rows.append((5.0, last_norm, 10, 0))
    whole, part = Watch(), Watch()
    found = [whole.step_done(*row) for row in rows][-1]
    assert [part.step_done(*row) for row in rows[abnormal.replay_from(len(rows)) :]][-1] == found


@given(
    st.lists(st.tuples(*[st.floats(allow_nan=True)] * 2, st.integers(1, 2**58), st.integers(0, 2**58)), max_size=200)
)
def test_whatever_a_trainer_tells_only_known_kinds_are_found(rows: list[tuple[float, float, int, int]]) -> None:
    watch = Watch()
    for row in rows:
        assert set(watch.step_done(*row)) <= set(abnormal.OF_STEPS) <= set(ANOMALIES)


def until_it_diverges(losses: list[float], norms: list[float] | None = None) -> int | None:
    watch = abnormal.Spikes()
    for step, row in enumerate(zip(losses, norms or [1.0] * len(losses), strict=True), 1):
        if watch.step_done(*row):
            return step
    return None


def test_three_steps_far_above_the_usual_are_a_divergence() -> None:
    usual = [2.0] * abnormal.NORMS_MIN
    assert until_it_diverges([*usual, 2.7, 2.7, 2.7]) == len(usual) + 3
    assert until_it_diverges([*usual, *[2.59] * 50]) is None, "30 % is the limit"
    assert until_it_diverges([*usual, 9.0, 9.0, 2.0, 9.0, 9.0, 2.0]) is None, "it passes by itself"
    assert until_it_diverges([2.0] * 19 + [9.0] * 3) is None, "nothing is usual yet"
    assert until_it_diverges([*usual, float("nan"), 9.0, float("inf")]) == len(usual) + 3
    assert until_it_diverges([2.0] * 23, [1.0] * 20 + [11.0] * 3) == 23
    assert until_it_diverges([-2.0] * 30 + [-1.5] * 30) is None
    assert until_it_diverges([-2.0] * 30 + [-1.3] * 30) == 33, "a loss may be below 0"


def test_a_noisy_loss_needs_more_than_thirty_percent() -> None:
    noisy = [2.0 + (n % 5 - 2) / 4 for n in range(40)]
    assert until_it_diverges([*noisy, *[3.0] * 9]) is None
    assert until_it_diverges([*noisy, *[4.0] * 9]) == 43


@given(st.integers(20, 300), st.integers(1, 3))
def test_the_state_of_a_checkpoint_goes_on_where_it_was(usual: int, spiked: int) -> None:
    before, after = abnormal.Spikes(), abnormal.Spikes()
    for loss in [2.0 + n % 3 / 10 for n in range(usual)] + [9.0] * spiked:
        before.step_done(loss, 1.0)
    after.load(before.state())
    assert [after.step_done(9.0, 1.0) for _ in range(3)] == [before.step_done(9.0, 1.0) for _ in range(3)]
    assert after.state() == before.state()


MIB = 2**20


def found_at(resident: Callable[[float], float], seconds: float, limit: float, every_s: float = 0.1) -> float | None:
    """When a leak is found in a process that holds so many MiB at each moment, if it is."""
    leak, now_s = abnormal.Leak(), 0.0
    while now_s < seconds:
        now_s += every_s
        held = resident(now_s)
        if leak.due(now_s) and leak.read(now_s, round(held * MIB), round((limit - held) * MIB)):
            return now_s
    return None


@given(st.floats(10, 200), st.floats(0.5, 100), st.floats(0, 1), st.integers(0, 2**32))
def test_a_steady_leak_is_found_before_it_kills(fills_in_s: float, rate: float, noise: float, seed: int) -> None:
    dice = Random(seed)
    begin, room = 5.0, max(128.0, fills_in_s * rate)
    noisy = noise * min(1.0, rate * abnormal.MEMORY_EVERY_S / 4)
    at = found_at(lambda s: 300 + rate * max(0, s - begin) + noisy * dice.random(), begin + room / rate, 301 + room)
    assert at is not None and begin < at < begin + room / rate


@given(st.floats(0, 30), st.floats(0, 4000), st.floats(1, 20), st.integers(0, 2**32))
def test_memory_that_levels_off_is_no_leak(noise: float, warm_up: float, lasts_s: float, seed: int) -> None:
    dice = Random(seed)
    limit = 300 + 3 * warm_up + 40 * abnormal.MEMORY_HORIZON_S * warm_up / lasts_s  # far away at any moment
    grown = found_at(lambda s: 300 + warm_up * min(1, s / lasts_s) + noise * dice.random(), 600, limit, every_s=1.0)
    assert grown is None


@given(st.floats(40, 2000), st.floats(1, 30))
def test_a_cache_that_is_emptied_again_and_again_is_no_leak(size: float, period_s: float) -> None:
    limit = 300 + size * (1 + abnormal.MEMORY_HORIZON_S / period_s) + 1
    assert found_at(lambda s: 300 + size * (s % period_s) / period_s, 600, limit) is None


def test_a_leak_of_days_is_found_hours_before() -> None:
    rate, limit = 100.0, 300 + 100.0 * 48  # MiB an hour, for two days
    at = found_at(lambda s: 300 + rate * s / 3600, 48 * 3600, limit, every_s=60.0)
    assert at is not None and 24 < at / 3600 < 40


def test_the_forecast_says_when_the_limit_is_reached() -> None:
    leak = abnormal.Leak()
    for number in range(1, 40):
        found = leak.read(number * 0.5, (300 + 10 * number) * MIB, 200 * MIB)
    assert found is not None
    assert found.bytes_per_s == 20 * MIB and found.full_in_s == 10
