"""A loss scale accounts for so many skipped updates as it can be halved, and for no more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging import EXPECT, fault_free_of, load, verdict
from simulator import Job, Logs, Outage, change, simulate

from harness.evidence import losses
from harness.evidence.logs import Evidence
from harness.judge.thresholds import GROWTH_INTERVAL
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=60, every=10)
FINAL = EXPECT | {"loss_continuity": {"mode": "final", "max_final_gap": 90}}


def scaler(updates: list[bool]) -> int:
    """How often the scale of a `GradScaler` is halved before it would be below 1."""
    scale, tracker, halved = 2.0**16, 0, 0
    for fails in updates:
        if not fails:
            tracker = (tracker + 1) % GROWTH_INTERVAL
            scale *= 1 if tracker else 2
        elif scale > 1:
            scale, tracker, halved = scale / 2, 0, halved + 1
        else:
            tracker = 0
    return halved


@given(runs=st.lists(st.tuples(st.integers(0, 4500), st.integers(0, 20)), max_size=6))
def test_as_many_as_a_scaler_would_halve(runs: list[tuple[int, int]]) -> None:
    updates = [fails for good, bad in runs for fails in [False] * good + [True] * bad]
    assert losses.by_scale(np.array(updates, np.bool_)).sum() == scaler(updates)


@pytest.mark.parametrize(("good", "excused"), [(1999, False), (2000, True)])
def test_a_scale_grows_after_2000_updates_in_a_row(good: int, excused: bool) -> None:
    """The default of `GradScaler`."""
    assert losses.by_scale(np.array([True] * 16 + [False] * good + [True]))[-1] == excused


def lost(logs: Logs, first: int, last: int) -> None:
    """The losses of these steps are no numbers, and a loss scale is said to have left their updates out."""
    change(logs.steps(first, last), loss="nan", grad_norm="nan", applied=False)


@pytest.mark.parametrize("many, hidden", [(16, 16), (17, 16), (30, 16)])
def test_more_losses_that_are_no_number_are_not_excused(many: int, hidden: int) -> None:
    card = verdict(simulate(JOB), lambda logs: lost(logs, 11, 10 + many), FINAL, fault_free=fault_free_of(JOB))
    assert card.scores["loss_continuity"]["nonfinite_steps"] == many - hidden
    assert (card.verdict is Verdict.FAIL) == (many > hidden), card.reasons


def test_nor_is_such_a_run_one_to_compare_with() -> None:
    history = simulate(JOB, (), 99)
    run, found = fault_free_of(JOB, 98), list[str]()
    for many in (16, 17, 30):
        logs = history.logs()
        lost(logs, 11, 10 + many)
        found.append(Evidence(run).flaw(load(history, logs)))
    assert found == ["", *["its loss is not a number in some steps"] * 2]


def test_ten_restarts_may_each_look_for_the_scale_again() -> None:
    """A restart before the first checkpoint begins with the first scale; nothing of it diverged."""
    outages = [Outage(8, "rank") for _ in range(5)]

    def seeking(logs: Logs) -> None:
        change(logs.steps(1, 6), grad_norm="inf", applied=False)

    card = verdict(simulate(JOB, outages, 3), seeking, FINAL, fault_free=fault_free_of(JOB))
    assert not [text for text in card.reasons if "diverg" in text or "no number" in text], card.reasons
