"""The harness sees the steps of the job."""

from __future__ import annotations

from harness.judge.assumption import Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.reported import blindness
from harness.judge.verdict import Ground, Kind


def _blind(evidence: Analysis, ground: Ground) -> str:
    why = blindness(evidence.run, evidence.fault_free)
    return f"not judged: {why}" if why else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.STEPS, _blind, "Let the trainer tell its steps: docs/bring-your-own-trainer.md", alone=True),),
    order=0,
)
