"""Numbers that remember what they were compared with, and what is said of the nearest runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import margins
import numpy as np
import pytest
from margins import NOTED, Margin, Seen, recorder
from mutants.bent import BROKEN

from harness.judge import thresholds
from harness.judge.thresholds import Threshold

NAME = "LATE"
ROW = Threshold("healthy", "<=", 10, "s", "in time | late", "runs: some")


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(margins, "TABLE", {NAME: ROW})
    monkeypatch.setattr(margins, "ROOMS", ("tools",))
    NOTED.clear()
    return recorder(10, {NAME: 1.0})


@pytest.mark.parametrize(
    ("compare", "noted"),
    [
        (lambda late: [late > 5, late >= 2, not late >= 30.0, not late > 40], [0.5, 3.0]),
        (lambda late: [late <= 10, not np.int64(9) > late, np.float64(11) > late], [0.9, 1.0, 1.1]),
        (lambda late: (np.array([1, 8, 20, 70]) > late) == [False, False, True, True], [0.8, 2.0]),
        (lambda late: (np.array([np.nan, np.inf]) > late) == [False, True], []),
        (lambda late: [3 * late - 10 > 12, not (late + 2) / 0.5 > 100], [22 / 30, 4.8]),  # turns at 22/3, and at 48
        (lambda late: np.array([30.0, 60.0]) > late * np.array([2.0, 4.0]), [1.5]),
        (lambda late: [not np.int64(3) + late < 11], [0.8]),  # at 8: `late` is on the left
        (lambda late: [max(late, 50) == 50, max(late, np.float64(3)) is late, not max(late, 50) > 60], []),
        (lambda late: (np.array([7.0, 49.0]) > np.maximum(late, np.array([5.0, 50.0]))) == [False, False], [0.7]),
        (lambda late: [not np.array([49.0]) > np.where([True, False], late, 50.0)[1:]], []),
    ],
)
def test_what_a_number_is_compared_with_is_noted_by_the_nearest_of_both_sides(
    compare: Any, noted: list[float], late: Any
) -> None:
    """Also in arithmetic, where the threshold at which the answer would turn counts, and not where another bound outdoes it."""
    assert all(compare(late))
    assert sorted(seen.ratio for seen in NOTED.get(NAME, {}).values()) == pytest.approx(noted)


def test_it_is_a_number_for_everybody_else(late: Any) -> None:
    assert [*range(20)][:late] == [*range(10)] and f"{late} {late:g} {late // 4}" == "10 10 2"
    assert np.pad([1], (late - 8, 0)).tolist() == [0, 0, 1]
    assert divmod(late, 3) == (3, 1) and round(late / 4) == 2 and -late == -10 and 23 % late == 3


@pytest.mark.parametrize("sign, good, bad", [("<=", [0.5, 1.0], 2.0), ("<", [0.5], 1.0), (">=", [2.0, 1.0], 0.5)])
def test_a_run_stands_on_its_own_side(sign: Any, good: list[float], bad: float) -> None:
    row = dataclasses.replace(ROW, sign=sign)
    noted = {None if each == 1 else each > 1: Seen(each, "rule") for each in (0.5, 1.0, 2.0)}
    found = Margin()
    found.take(row, "healthy", "one", noted)
    found.take(row, "broken", "other", noted)
    assert found.healthy and found.healthy.ratio in good and found.broken and found.broken.ratio == bad
    assert found.beyond == 1


def test_what_is_said_of_it() -> None:
    margin = Margin(margins.Side(0.8, "a run", "rule"), margins.Side(1.2, "a mutant", "rule"), compared=2)
    told = margins.words(NAME, margin)
    assert "0.8 × (8 s)  a run" in told and "the gap is 1.5 ×: under 2" in told
    far = margins.words(NAME, dataclasses.replace(margin, broken=margins.Side(11, "a mutant", "rule")))
    assert "no broken run within a factor of ten: make one" in far and "under" not in far
    assert "no run compares anything with it: make one" in margins.words(NAME, Margin())


def test_a_verdict_is_that_of_plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`victim_lives` tells something long after its end."""
    bent = next(bent for bent in BROKEN if bent.name == "victim_lives")
    said = [str(reason) for reason in bent.judge().reasons]
    row = Threshold("healthy", "<=", thresholds.LAST_WORDS_NS, "ns", "a | b", "runs: some")
    monkeypatch.setattr(margins, "TABLE", {NAME: row})
    monkeypatch.setattr(margins, "ROOMS", ("judge",))
    monkeypatch.setattr(thresholds, "LAST_WORDS_NS", recorder(thresholds.LAST_WORDS_NS, {NAME: 1.0}))
    assert [str(reason) for reason in bent.judge().reasons] == said
    assert NOTED[NAME][True].ratio > 1 and NOTED[NAME][True].rule == "judge/facts/times.py: impossible"


def test_a_threshold_from_nowhere_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in ("", "runs: ", "somebody said so"):
        monkeypatch.setattr(margins, "TABLE", {NAME: dataclasses.replace(ROW, source=source)})
        assert margins.main([]) == 1
        assert NAME in capsys.readouterr().out
