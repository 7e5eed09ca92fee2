"""Closed forms against published figures."""

import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.ledger import ACCOUNTS
from harness.theory import closed_forms as forms

GPU_RATE = 6.5e-3 / 8 / 86_400  # failures a second and GPU: 6.5 per 1000 days of a node with 8 of them
MINUTE = 60.0


@pytest.mark.parametrize(("minutes", "ettr"), [(60, 0.684), (5, 0.932)])
def test_expected_ettr_without_checkpoint_cost(minutes: int, ettr: float) -> None:
    rate = 16_000 * GPU_RATE
    assert forms.expected_ettr(rate, 5 * MINUTE, minutes * MINUTE) == pytest.approx(ettr, abs=5e-4)


@pytest.mark.parametrize(("restart_minutes", "ettr"), [(5, 0.9205), (10, 0.8875), (20, 0.8213)])
def test_expected_ettr_at_the_best_interval(restart_minutes: int, ettr: float) -> None:
    rate = 12_000 * GPU_RATE
    best = forms.young_interval_s(10, 1 / rate)
    assert best / MINUTE == pytest.approx(7.02, abs=5e-3)
    assert forms.expected_ettr(rate, restart_minutes * MINUTE, best, 10) == pytest.approx(ettr, abs=5e-5)


def test_intervals_are_the_published_ones_and_without_a_failure_nothing_is_lost() -> None:
    assert forms.young_interval_s(60, 8 * 3600) == pytest.approx(1859.0, abs=0.05)
    assert forms.daly_interval_s(60, 8 * 3600) == pytest.approx(1819.2, abs=0.05)
    assert forms.daly_interval_s(100, 50) == 50
    assert forms.expected_ettr(0.0, 100, 60) == 1.0
    assert forms.expected_ettr(0.0, 100, 60, 60) == 0.5
    assert forms.expected_ettr(1.0, 100, 60) == 0.0


@given(st.dictionaries(st.sampled_from(["productive", "idle", *forms.BADPUT]), st.integers(0, 10**12)))
def test_badput_is_all_that_is_not_productive(accounts: dict[str, float]) -> None:
    unproductive = sum(accounts.values()) - accounts.get("productive", 0)
    assert sum(forms.badput(accounts).values()) == pytest.approx(unproductive)


def test_the_categories_are_those_of_the_page() -> None:
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([a-z_, ]+?)(?: \(.*\))? \|$", page, re.M)
    told = {account: category for category, accounts in rows for account in accounts.split(", ")}
    assert {account: next(iter(forms.badput({account: 1.0}))) for account in told} == told
    assert set(told) == set(ACCOUNTS) - {"productive"}
