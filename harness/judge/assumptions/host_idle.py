"""Other programs use no more of the host's CPUs than they do in the fault-free runs.

Other programs may use 15 percentage points more of the CPUs than before the first fault or in a fault-free run,
whichever is more. A job that exceeds the limit of `pace` by a factor of up to 1.4 (or 1.4 / (1 - extra CPU share)², if
other programs use more of the CPUs than allowed) is inconclusive, not failed.
"""

from harness.judge.assumption import AGAIN, FRESH, Analysis, Assumption, Ground, Kind, Spoils
from harness.judge.facts.usual import Pace, Slow, others_share
from harness.judge.thresholds import HOST_FACTOR, OTHERS_MAX, OTHERS_MOST


def _busy(evidence: Analysis, ground: Ground) -> str:
    pace = ground.of
    if not isinstance(pace, Pace):
        return ""
    slow, allowed = pace.slow(ground.bound), pace.allowed(ground.bound)
    if slow is Slow.IN_THE_END or (slow is Slow.ON_THE_WHOLE and pace.best <= allowed):
        return "not all the time: the host may have been busy"
    if slow is not Slow.ON_THE_WHOLE:
        return ""
    times = pace.at_least / (allowed * max(pace.worst, HOST_FACTOR))
    if times <= 1:
        return "a busy host could also explain it"
    # The job gets the CPUs that other programs leave, and waits for the rank that gets the least.
    taken = pace.others > OTHERS_MAX and times * max(1 - pace.others, 0.01) ** 2 <= 1
    return f"other programs took {pace.others:.0%} more of the host's CPUs then" if taken else ""


def _host_taken(evidence: Analysis, ground: Ground) -> str:
    others = others_share(evidence.run, evidence.run.begin, evidence.run.end)
    return f"other programs took {others:.0%} of the host's CPUs" if others > OTHERS_MOST else ""


ASSUMPTION = Assumption(
    spoils=(Spoils(Kind.DURATION, _busy, FRESH), Spoils(Kind.DURATION, _host_taken, f"{AGAIN}: {{run}}")), order=4
)
