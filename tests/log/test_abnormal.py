"""What is abnormal: each rule at its limit, and nothing said of a training that is as it should be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.emitter import abnormal
from harness.emitter.abnormal import Watch
from harness.emitter.vocabulary import ANOMALIES

LOSS = abnormal.LOSS_RECENT_STEPS + abnormal.LOSS_BEFORE_STEPS


def test_a_loss_that_improves_by_less_than_two_percent_stagnates() -> None:
    before = [5.0] * abnormal.LOSS_BEFORE_STEPS
    assert abnormal.loss_stagnates([*before, *[4.91] * 50])
    assert not abnormal.loss_stagnates([*before, *[4.89] * 50])
    assert not abnormal.loss_stagnates([5.0] * (LOSS - 1)), "too few steps to say"
    assert abnormal.loss_improvement([*before, *[4.0] * 50]) == 0.2
    assert abnormal.loss_improvement([0.0] * LOSS) is None


def test_a_gradient_norm_spikes_above_ten_times_the_usual() -> None:
    usual = [1.0] * abnormal.NORMS_MIN
    assert abnormal.gradient_spikes(10.1, usual) and abnormal.gradient_spikes(float("inf"), usual)
    assert not abnormal.gradient_spikes(10.0, usual) and not abnormal.gradient_spikes(99, usual[1:])


def test_uniformly_slow_steps_are_slow() -> None:
    assert abnormal.steps_are_slow([1.0] * 100 + [1.16] * 50)
    assert not abnormal.steps_are_slow([1.0] * 100 + [1.14] * 50)
    assert not abnormal.steps_are_slow([1.0] * 100 + [1.0] * 30 + [9.0] * 20), "some pauses are no slow pace"


def test_a_tenth_of_the_time_for_data_and_two_intervals_without_a_checkpoint() -> None:
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
