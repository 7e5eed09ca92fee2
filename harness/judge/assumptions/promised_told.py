"""The trainer reports all evidence that it declares and, after a start from scratch, whether it had a checkpoint."""

from harness.evidence import reported
from harness.judge.assumption import Analysis, Assumption, Reasons


def _broken(evidence: Analysis) -> Reasons:
    missing = [f"{reported.ITEMS[kind]}: {why}" for kind, why in reported.missing(evidence)]
    if missing:
        yield f"evidence is missing: {'; '.join(missing)}"
    if text := reported.from_scratch(evidence.run):
        yield text


ASSUMPTION = Assumption(_broken, holds_for=("run",))
