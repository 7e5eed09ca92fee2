"""Each fault strikes its planned targets while they are part of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.judge.facts.analysis import Analysis
from harness.judge.facts.fault_targets import Aim, already_ended, not_of_job, other_targets
from harness.judge.guarantee import RUN, Breach, Guarantee, of_fault
from harness.units import format_duration


def breaches(evidence: Analysis) -> Iterator[Breach]:
    for other in other_targets(evidence):
        names, struck, meant = f"{_names(other.struck)}, not {_names(other.meant)}", other.struck, other.meant
        if struck.total() != meant.total() and "rank" not in names:
            names = f"{struck.total()} nodes, not {meant.total()}"
        yield of_fault(f"struck {names}", other)
    for each in not_of_job(evidence):
        yield of_fault(f"struck {each.node}, which was not part of the job at that time", each)
    for gone in already_ended(evidence):
        yield of_fault(f"struck {gone.node}, whose command had ended {format_duration(gone.ended_ns)} before", gone)


def _names(found: Counter[Aim]) -> str:
    """`rank 0`, `ranks 0, 1`, `node1`, `rank 0 and node1`."""
    ranks = sorted(str(name) for kind, name in found.elements() if kind == "rank")
    nodes = sorted(str(name) for kind, name in found.elements() if kind == "node")
    shown = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""
    return " and ".join(filter(None, [shown, ", ".join(nodes)])) or "nothing"


GUARANTEE = Guarantee(breaches, holds_for=(RUN,), needs_steps=False, of_a_fault=True)
