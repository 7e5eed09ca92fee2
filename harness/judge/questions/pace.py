"""How many times slower the job is after its recovery than the fault-free run in the same steps; see `judge.pace`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness.judge.pace import SLOWDOWN_MAX, Pace, judge, measure
from harness.judge.score import Bounds, Evidence, Expectation, Score, ScoreResult, Verdict

NAME = "pace.max_slowdown"
ITEM = "pace"


class PaceBounds(Bounds):
    """`max_slowdown`: how many times slower than without a fault the job may be once it has recovered."""

    max_slowdown: float = Field(SLOWDOWN_MAX, ge=1)


class PaceScore(Score):
    name = "pace"
    order = 40
    Bounds = PaceBounds
    by_default = ITEM

    def score(self, evidence: Evidence, bounds: PaceBounds | None) -> ScoreResult:
        found = measure(evidence)
        if isinstance(found, str):
            return ScoreResult({"slowdown": None, "steps": 0}, not_judged=[(ITEM, found)])
        names = ("slowdown", "at_least", "steps", "before", "best", "tail", "worst")
        values: dict[str, Any] = {name: getattr(found, name) for name in names}
        if bounds is None:
            return ScoreResult(values)
        judged = judge(found, bounds.max_slowdown)
        why = _unmeasurable(found, bounds.max_slowdown) if judged.verdict is Verdict.PASS else ""
        if why:
            return ScoreResult(values, not_judged=[(ITEM, why)])
        observed = f"{found.slowdown:.2f} ×, at least {found.at_least:.2f} ×"
        line = Expectation(
            NAME, f"≤ {bounds.max_slowdown:g} ×", observed, *judged[:2], code=judged.code, doubt=judged.doubt
        )
        return ScoreResult(values, [line])


def _unmeasurable(pace: Pace, bound: float) -> str:
    """Why it proves nothing that the job is not slower than allowed, or an empty text."""
    if not pace.known:
        return "no fault-free run had as many ranks as the job had at the end"
    if pace.at_least > bound and pace.before > bound:
        return f"the job was already {pace.before:.2f} times slower than its fault-free run before the first fault"
    return ""


SCORES = (PaceScore(),)
