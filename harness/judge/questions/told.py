"""What the log tells: evidence that was promised and is missing, and what cannot be judged as nobody tells it."""

from __future__ import annotations

from harness.emitter.vocabulary import TELLS
from harness.judge.codes import Code
from harness.judge.facts import tells
from harness.judge.score import Bounds, Evidence, Finding, Score, ScoreResult, Verdict


class ToldBounds(Bounds):
    """Nothing to set: what was promised must be there."""


class ToldScore(Score):
    name = "told"
    section = "metrics"
    order = 5
    Bounds = ToldBounds

    def score(self, evidence: Evidence, bounds: ToldBounds | None) -> ScoreResult:
        here = tells.told(evidence.run)
        reasons = [
            Finding(Verdict.INCONCLUSIVE, f"evidence is missing: {tells.ITEMS[kind]}: {why}", Code.EVIDENCE_MISSING)
            for kind, why in tells.missing(evidence)
        ]
        scratch = tells.from_scratch(evidence.run)
        reasons += [Finding(Verdict.INCONCLUSIVE, scratch, Code.RESTART_TOLD_SCRATCH)] if scratch else []
        untold = list(tells.not_judged(evidence, evidence.run.plan.get("expect") or {}))
        return ScoreResult({"tells": [kind for kind in TELLS if kind in here]}, reasons=reasons, not_judged=untold)


SCORES = (ToldScore(),)
