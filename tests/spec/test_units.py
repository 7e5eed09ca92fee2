from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from harness import units


def test_durations_sizes_rates_and_shares() -> None:
    ms = {"30s": 30_000, "1.5s": 1_500, "10m": 600_000, "2h": 7_200_000, "5 ms": 5}
    assert [units.parse_duration_ns(text) for text in ms] == [each * 10**6 for each in ms.values()]
    assert units.Size("64MiB").bytes == 64 * 2**20
    assert units.Size("1.5GB").bytes == 1_500_000_000
    assert units.Rate("1gbit").bits_per_s == 10**9
    assert units.parse_percent("25%") == units.parse_percent(25) == 25.0
    assert (units.parse_per_hour("2/h"), units.parse_per_hour("1/m")) == (2.0, 60.0)
    for bad in ("101%", "-1", "x", True, None):
        with pytest.raises(ValueError, match="percentage"):
            units.parse_percent(bad)


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_a_decimal_fraction_is_exact(whole: int, thousandths: int) -> None:
    assert units.parse_duration_ns(f"{whole}.{thousandths:03d}s") == whole * 10**9 + thousandths * 10**6


@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (
        units.parse_duration_ns,
        lambda text: units.Size(text).bytes,
        lambda text: units.Rate(text).bits_per_s,
        units.parse_percent,
        units.parse_per_hour,
    ):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert repr(text)[:40] in str(error)  # a longer one is cut


class Parameters(BaseModel):
    notice: units.Duration = units.Duration("5s")
    block: units.Size | None = None
    rate: units.Rate | None = None


@given(
    st.integers(0, 500_000),
    st.sampled_from(["ns", "us", "ms", "s", " m"]),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
)
def test_quantities_are_numbers_here_and_text_in_json(duration: int, unit: str, size: int, rate: int) -> None:
    written = {"notice": f"{duration}{unit}", "block": f"{size}KiB", "rate": f"{rate}mbit"}
    found = Parameters.model_validate(written)
    assert found.notice.ns == units.parse_duration_ns(written["notice"]) and found.notice.s == found.notice.ns / 1e9
    assert found.block is not None and found.block.bytes == size * 1024
    assert found.rate is not None and found.rate.bits_per_s == rate * 10**6
    assert found.model_dump(mode="json") == written
    assert Parameters.model_validate(found.model_dump(mode="json")) == found
    assert str(found.notice) == written["notice"]


NO_DURATIONS = [30, None, True, ["1s"], "30", "30 seconds", "-1s", "s", "", "1e3s", "8761h", "1" * 50 + "s", "٣s"]


@pytest.mark.parametrize("bad", NO_DURATIONS)
def test_what_is_no_duration_is_refused(bad: object) -> None:
    with pytest.raises(ValidationError, match="duration"):
        Parameters.model_validate({"notice": bad})
    with pytest.raises(ValueError, match="duration"):
        units.Duration(bad)  # type: ignore[arg-type]
    if str(bad)[-1:] != "h":
        with pytest.raises(ValueError, match="ns, us, ms, s, m, h"):
            units.parse_duration_ns(bad)


def test_durations_and_numbers_for_people() -> None:
    """One is no plural."""
    ns = {
        "1 µs": 850,
        "85 ms": 85 * 10**6,
        "1.24 s": 1_240_000_000,
        "3 min 20 s": 200 * 10**9,
        "1 h 1 min": 3700 * 10**9,
    }
    assert [units.format_duration(each) for each in ns.values()] == [*ns]
    told = {number: units.counted(number, "step") for number in (0, 1, 2, 1200)}
    assert told == {0: "0 steps", 1: "1 step", 2: "2 steps", 1200: "1,200 steps"}
