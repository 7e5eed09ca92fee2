"""The times in the logs of processes contradict neither each other nor what the harness saw.

No step begins before its process, or before the process's previous step ends, and no wait within a step is longer than
the step. No step ends on one rank before another rank begins it. No process does a step or writes a line after its end,
no two log the same durations, to the nanosecond, for five steps in a row, and none is ready before the last one with
its local rank has ended. No process logs a notice to leave before a fault gave it. The harness sees a recovery at most
5 s plus twice its usual delay after it was logged, and never sees three saves in a row over 2 s late and over twice as
late as in the fault-free run. A contradiction is ignored if it is at least half as large in a fault-free run.
"""

from harness.evidence.usual import others_share
from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.thresholds import OTHERS_MOST
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Reasons:
    """Yields each contradiction. On a busy host, the harness itself may have seen something late."""
    run = evidence.run
    others = others_share(run, run.begin, run.end)
    why = f", or the harness was held up: other programs took {others:.0%} of the host's CPUs"
    why = UNTRUE + why * (others > OTHERS_MOST)
    return (f"{each.words}: {why}" for each in evidence.impossible_times)


ASSUMPTION = Assumption(_broken, family="steps")
