"""No cluster engine, such as Slurm, takes nodes away of its own accord.

On a busy host, an engine's controller may get no message from its nodes for some seconds, treat the nodes as dead, and
put the job back into its queue. The engine is not blamed for the loss of a node that a fault explains. If the first
process to die was not ended by SIGTERM or SIGKILL, the job failed before the engine took nodes.
"""

import signal

from harness.evidence.deaths import listed
from harness.judge.assumption import AGAIN, Analysis, Assumption, Ground, Kind, Spoils
from harness.log.vocabulary import REQUEUED

ENDED_FROM_OUTSIDE = {code for n in (signal.SIGTERM, signal.SIGKILL) for code in (-n, 128 + n)}


def _taken(evidence: Analysis, ground: Ground) -> str:
    requeued = {slot.key for slot in evidence.run.slots if slot.reason == REQUEUED}
    deaths = sorted(evidence.deaths_unexplained, key=lambda end: end.at)
    dead = {end.node for end in deaths if end.key in requeued}
    if not dead or deaths[0].code not in ENDED_FROM_OUTSIDE:
        return ""
    return f"the engine took {listed(sorted(dead))} away and put the job back into its queue"


SETTLES = f"{AGAIN}, and see the log of the engine's controller: {{run}}"
ASSUMPTION = Assumption(spoils=(Spoils(Kind.NODES, _taken, SETTLES),), order=3)
