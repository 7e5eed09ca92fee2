"""When did anybody in the job notice a fault: from the injection to the first sign of it, before it was over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
