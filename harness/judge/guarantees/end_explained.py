"""A fault explains each death."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.deaths import describe_alike
from harness.judge.facts.job_end import unexplained
from harness.judge.guarantee import Breach, Guarantee, breach

NAMED_DEATHS = 3  # kinds of them


def breaches(evidence: Analysis) -> Iterator[Breach]:
    """One, for all of them: the first few kinds, and how many deaths are of none of these."""
    kinds, lines = unexplained(evidence.run, evidence.deaths_unexplained), []
    for each in kinds[:NAMED_DEATHS]:
        why = f"it came after `{each.spoiler}` had damaged a checkpoint" if each.spoiler else "no fault explains it"
        told = describe_alike(each.ends, evidence.run.begin)
        lines.append(f"unexplained death{'s' * (len(each.ends) > 1)}: {told} ({why})")
    if rest := sum(len(each.ends) for each in kinds[NAMED_DEATHS:]):
        lines.append(f"{rest} more unexplained death{'s' * (rest > 1)}")
    if kinds:
        yield breach("; ".join(lines), *kinds)


GUARANTEE = Guarantee(breaches, needs_steps=False)
