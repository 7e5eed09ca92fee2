"""Other programs use no more of the host's CPUs than they do in the fault-free runs.

During the time window of a breach, other programs may use at most half of the CPUs, and at most 15 percentage points
more of the CPUs than in a fault-free run or before the first fault. If a breach has no time window, other programs may
use at most half of the CPUs over the run, or over the wait before a possible timeout. If the job is slower than the
limit `pace` by a factor of up to 1.4, the run is inconclusive, not failed. If other programs used over 15 percentage
points more of the CPUs than usual, a job slower by a factor of up to 1.4 / (1 - extra CPU share)² is inconclusive, too.
"""

from harness.evidence.usual import Pace, Slow, others_share
from harness.evidence.work import Waited
from harness.judge.assumption import AGAIN, FRESH, Analysis, Assumption, Ground, Kind, Spoils
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
    run, window = evidence.run, ground.of
    if isinstance(window, Waited):
        others = others_share(window.log, window.since, window.log.end)
        return f"other programs took {others:.0%} of the host's CPUs then" if others > OTHERS_MOST else ""
    if not isinstance(window, tuple):
        others = others_share(run, run.begin, run.end)
        return f"other programs took {others:.0%} of the host's CPUs" if others > OTHERS_MOST else ""
    until = min((each["at"] for each in run.host_load if each["at"] >= window[1]), default=window[1])
    others = others_share(run, window[0], until)  # each event tells of the time since the event before it
    usual = [others_share(each, each.begin, each.end) for each in evidence.fault_free_runs]
    usual.append(others_share(run, run.begin, evidence.disturbed[0][0] if evidence.disturbed else run.end))
    busy = others > min(OTHERS_MOST, max(usual) + OTHERS_MAX)
    return f"other programs took {others:.0%} of the host's CPUs then" if busy else ""


SPOILS = Spoils(Kind.DURATION, _busy, FRESH), Spoils(Kind.DURATION, _host_taken, f"{AGAIN}: {{run}}")
ASSUMPTION = Assumption(spoils=SPOILS, order=4)
