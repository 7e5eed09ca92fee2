"""A fault in the scorers' hands: when anybody in the job noticed it, whom it struck, and whether it was undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.score import Verdict
from harness.scores.job import _healed_early, _wrong_target
from harness.scores.metrics import _detection


def episode(end: int, *faults: str) -> Any:
    return SimpleNamespace(end=end, faults=faults)


@pytest.mark.parametrize(
    ("evidence", "episodes", "healed", "found"),
    [
        ([40], [episode(50, "kill")], None, 30),
        ([50], [episode(50, "kill")], None, 40),
        ([51], [episode(50, "kill")], None, None),
        ([9, 10, 12], [episode(50, "kill")], None, 0),
        ([9], [episode(50, "kill")], None, None),
        ([], [], None, None),
        ([60], [episode(70, "other")], None, 50),
        ([60], [episode(9, "kill")], 61, 50),
        ([60], [], 60, 50),
        ([61], [], 60, None),
        ([100], [], None, 90),
        ([101], [], None, None),
        ([55], [episode(50, "kill"), episode(80, "kill")], None, None),
        ([10], [episode(10, "kill")], 5, 0),
    ],
)
def test_the_first_sign_counts_if_it_comes_in_time(
    evidence: list[int], episodes: list[Any], healed: int | None, found: int | None
) -> None:
    run: Any = SimpleNamespace(evidence=np.array(evidence, np.int64), episodes=episodes, end=100)
    fault: Any = SimpleNamespace(id="kill", injected=10, healed=healed)
    assert _detection(run, fault) == found


def test_a_fault_that_never_struck_was_not_noticed() -> None:
    run: Any = SimpleNamespace(evidence=np.array([20]), episodes=[], end=100)
    fault: Any = SimpleNamespace(id="kill", injected=None, healed=None)
    assert _detection(run, fault) is None


@pytest.mark.parametrize(
    ("target", "at", "had"),
    [
        ({"node": "a", "rank": None}, 10, True),
        ({"node": "a", "incarnation": 1, "rank": None}, 20, True),
        ({"node": "a", "incarnation": 1, "rank": None}, 21, False),
        ({"node": "a", "incarnation": 2, "rank": None}, 10, False),
        ({"node": "a", "incarnation": 2, "rank": None}, 31, True),
        ({"node": "b", "rank": None}, 10, False),
    ],
)
def test_the_job_had_what_was_struck(target: dict[str, Any], at: int, had: bool) -> None:
    """A target without an incarnation is the node's first."""
    slots = [SimpleNamespace(node="a", incarnation=n, allocated=30 * n - 30, released=30 * n - 10) for n in (1, 2)]
    run: Any = SimpleNamespace(slots=slots)
    fault: Any = SimpleNamespace(id="kill", injected=at, targets=[target])
    found = list(_wrong_target(run, fault, {"targets": [{"rank": None}]}))
    text = f"fault kill struck {target['node']}, which the job did not have then"
    assert found == ([] if had else [(Verdict.INVALID, text)])


@pytest.mark.parametrize(
    ("outcome", "error", "told"),
    [("completed", None, True), ("completed", "no such device", False), (None, None, False), (None, "x", False)],
)
def test_a_fault_that_was_to_end_and_did_not_is_no_proof(outcome: str | None, error: str | None, told: bool) -> None:
    """What broke off says so itself; a log without an end may have lost the line."""
    run: Any = SimpleNamespace(outcome=outcome)
    fault: Any = SimpleNamespace(id="full", injected=10, healed=None, error=error, targets=[])
    found = list(_healed_early(run, fault, {"parameters": {"duration": "8s"}}))
    assert found == ([(Verdict.INVALID, "fault full was never undone, though it was to last 8s")] if told else [])
    assert list(_healed_early(run, fault, {"parameters": {}})) == []
