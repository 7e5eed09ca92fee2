"""If the loss is far off the fault-free run's for many steps, a restart or fault is the cause, and not chance.

If a fault changes samples, gradients or weights, the loss may differ from the fault-free run's until the training has
recovered. If neither a restart nor a fault came shortly before the loss began to differ, rounding errors may have grown
by chance.
"""

from harness.judge.assumption import Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.facts.excursions import Excursion, acted

AGAIN = "Run it again, to see whether it happens each time: {run}"


def _disturbed(evidence: Analysis, ground: Ground) -> str:
    run, of = evidence.run, ground.of
    if not isinstance(of, Excursion):
        return ""
    moments = [epoch.first for epoch in run.epochs[1:]]
    for fault, begin, end in acted(evidence):
        moments += [begin, end]
        if fault.moves and begin <= of.last:
            return f"fault {fault.id} changes what the job computes, and may carry it off for as long"
        if not fault.kills and begin <= of.last and end >= of.first:
            return f"fault {fault.id} acted meanwhile, and may have kept ranks apart"
    if not any(of.since <= each <= of.until for each in moments):
        return f"no restart or fault came in steps {of.since} to {of.until}, so chance may have carried it off"
    return ""


ASSUMPTION = Assumption(spoils=(Spoils(Kind.COURSE, _disturbed, AGAIN),), order=6)
