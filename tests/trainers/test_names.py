"""What names tell of a step, and what they do not: dates, times, identities, parts, counters."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trainers.checkpoints.shared import names

COUNTED = ("step{}", "step-{:08d}", "step={}", "global_step{}", "iter_{:07d}", "iteration_{}", "epoch=3-step={}")
NAMED = st.sampled_from(("checkpoint", "ckpt", "step", "model_step", "iter", "global_step"))
DATES = (
    *("%Y-%m-%d", "%Y-%m-%d_%H-%M-%S", "%Y-%m-%d_%H-%M-%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"),
    *("%Y%m%d_%H%M%S", "%Y%m%d-%H%M%S", "%Y%m%dT%H%M%SZ", "%Y%m%d%H%M%S", "%Y-%m-%d-%H-%M", "%d-%m-%Y"),
)
MOMENTS = st.datetimes(datetime.datetime(2001, 9, 10), datetime.datetime(2098, 1, 1), timezones=st.just(datetime.UTC))
DATED = st.builds(datetime.datetime.strftime, MOMENTS, st.sampled_from(DATES))
STEPS = st.integers(0, names.STEP_MAX)


@given(NAMED, st.sampled_from("-_"), DATED | st.uuids().map(str) | st.uuids().map(lambda identity: identity.hex))
def test_a_date_and_an_identity_are_no_step(word: str, between: str, other: str) -> None:
    assert names.step_in(f"{word}{between}{other}") is None
    assert names.is_unique(f"{word}{between}{other}")


@given(NAMED, MOMENTS.map(datetime.datetime.timestamp))
def test_seconds_and_milliseconds_since_1970_are_no_step(word: str, seconds: float) -> None:
    for text in (f"{seconds:.0f}", f"{seconds * 1000:.0f}", f"{seconds:.6f}"):
        assert names.step_in(f"{word}-{text}") is None


@given(st.sampled_from(COUNTED), STEPS, DATED)
def test_a_step_beside_a_date_is_told(form: str, step: int, date: str) -> None:
    for name in (f"{date}_{form.format(step)}", f"{form.format(step)}_{date}.pt"):
        assert names.step_in(name) == step, name


@given(st.sampled_from(COUNTED), STEPS, st.floats(0, 99).map(lambda loss: f"_loss_{loss:.2f}"))
def test_a_loss_behind_the_step_changes_nothing(form: str, step: int, loss: str) -> None:
    assert names.step_in(form.format(step)) == names.step_in(form.format(step) + loss) == step


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt-3f2b8c1", None),
        ("ckpt_12e4567", None),
        ("ckpt_20261128", None),
        ("step_20261128", 20261128),
        ("step20000000_2001-09-10.pt", 20000000),
        ("ckpt-00012-of-00050", None),
        ("step_20-00001-of-00002.safetensors", 20),
        ("v2", None),
        ("checkpoint_v2", None),
        ("epoch=3-step=1200-v1.ckpt", 1200),
        ("epoch_3_iter_100.pth", None),
        ("checkpoint3.pt", 3),
        ("step_1.5", None),
        ("ckpt_100_rank3.pt", 100),
        ("checkpoint_epoch_3.pt", None),
        ("epoch=3.ckpt", None),
        ("step-99999999999", None),
    ],
)
def test_the_step_in_an_odd_name(name: str, step: int | None) -> None:
    assert names.step_in(name) == step


@pytest.mark.parametrize(
    ("name", "known", "step"),
    [
        ("checkpoint_000003", 60, 60),  # the third save
        ("checkpoint_000003", None, 3),
        ("checkpoint_2026-11-28", 60, 60),
        ("checkpoint-120", 60, 120),  # of micro-batches, two a step
        ("step-3", 60, 3),
        ("last.pt", 60, 60),
        ("last.pt", None, None),
    ],
)
def test_the_content_tells_the_step_where_the_name_does_not(name: str, known: int | None, step: int | None) -> None:
    assert names.step_of(name, known) == step


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("40", 40),
        ("checkpoints/0000040", 40),
        ("20261128", None),
        ("step-40/1", None),
        ("epoch_2/1", None),
        ("a40b", None),
    ],
)
def test_a_number_alone_is_the_step_of_a_save(path: str, step: int | None) -> None:
    assert names.step_in(names.of_save(path)) == step
    assert names.is_ambiguous(names.of_save(path)), "it may count saves"
