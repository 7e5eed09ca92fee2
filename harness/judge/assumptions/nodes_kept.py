"""No engine takes nodes away of its own accord.

A controller that hears nothing of its nodes for some seconds, as on a busy host, takes them for dead and puts the job
back into its queue. If a fault had killed a node before, that fault explains it.
"""

from __future__ import annotations

from harness.judge.assumption import AGAIN, Assumption, Spoils
from harness.judge.facts.analysis import Analysis
from harness.judge.facts.deaths import listed
from harness.judge.verdict import Ground, Kind
from harness.log.vocabulary import REQUEUED


def _taken(evidence: Analysis, ground: Ground) -> str:
    requeued = {(slot.node, slot.incarnation) for slot in evidence.run.slots if slot.reason == REQUEUED}
    dead = {end.node for end in evidence.deaths_unexplained if (end.node, end.incarnation) in requeued}
    return f"the engine took {listed(sorted(dead))} away and put the job back into its queue" if dead else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.NODES, _taken, f"{AGAIN}, and see the log of the engine's controller: {{run}}"),), order=3
)
