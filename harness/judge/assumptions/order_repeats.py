"""Each run consumes the samples in the same order."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.verdict import Ground, Kind


def _order_unproven(evidence: Analysis, ground: Ground) -> str:
    unproven = evidence.consumed is not None and evidence.consumed.unproven
    return "nothing shows that the order is the same in every run" if unproven else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.ORDER, _order_unproven, "Let the trainer tell its samples: docs/bring-your-own-trainer.md"),)
)
