"""The Score contract, verdicts, and the scorecard that reports are made from.

A score is one file in `harness/scores/` with a `score(evidence) -> ScoreResult` and the pydantic model `Bounds`
of what may be written under its name in `expect:`. The file name is the score's name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.timeline import Timeline


class Verdict(enum.StrEnum):
    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    FAIL = "fail"


_PRIORITY = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.INVALID, Verdict.FAIL]


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst one: fail > invalid > inconclusive > pass. Nothing at all is inconclusive."""
    return max(verdicts, key=_PRIORITY.index, default=Verdict.INCONCLUSIVE)


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3, Verdict.INVALID: 3}


@dataclass(frozen=True)
class Evidence:
    """All a score may look at. `calibration` holds further fault-free runs (other world sizes, repeats)."""

    run: Timeline
    twin: Timeline | None = None
    calibration: Sequence[Timeline] = ()


@dataclass(frozen=True)
class Expectation:
    """One line of the report's table: `recovery_time.max` ≤ `60 s`, observed `4.21 s`, pass."""

    name: str
    bound: str
    observed: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class ScoreResult:
    values: Mapping[str, Any]  # as in report.json: scores.<name>
    expectations: Sequence[Expectation] = ()
    reasons: Sequence[tuple[Verdict, str]] = ()  # beyond the expectations


@dataclass(frozen=True)
class Scorecard:
    """What `report.json` holds, plus the timelines for drawing."""

    run_id: str
    scenario: str
    title: str
    backend: str
    seed: int
    verdict: Verdict
    reasons: Sequence[str]  # the first one is the headline
    faults: Sequence[Mapping[str, Any]]
    scores: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Any]
    expectations: Sequence[Expectation]
    environment: Mapping[str, Any]
    evidence: Evidence = field(repr=False)
