"""A step that was rolled back: lost with its process it is nothing, lost to a full disk it is not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge import doubts
from harness.judge.verdict import Ground, Kind, Verdict, failed


@pytest.mark.parametrize(("taken", "dropped", "verdict"), [(30, 3, None), (-1, 3, Verdict.INCONCLUSIVE)])
def test_only_what_was_lost_with_its_process_is_not_told(taken: int, dropped: int, verdict: Verdict | None) -> None:
    worker = SimpleNamespace(dropped=dropped)
    run = SimpleNamespace(processes=[worker], dropped=dropped, epochs=[], uncertainty_ns=0)
    evidence: Any = SimpleNamespace(run=run, taken=[taken])
    claim = failed("step.went-ahead", "…", Ground(Kind.ABSENCE, (0,), since=20), Ground(Kind.ABSENCE), idle=True)
    found = doubts.weighed(claim, evidence)
    assert (found and found.verdict) == verdict
