"""The times that processes tell can be: they contradict neither each other nor what the harness saw.

No step begins before its process, or before the step before it was over; none waits longer than it takes; none ends on
a rank before another has begun it. No process does or says anything after its end, and no two take the same
nanoseconds for five steps in a row. No worker is ready before the one whose place it takes has ended. No notice is
seen before a fault gave one. The harness sees a recovery at most 3 s after it was told, and three saves in a row at
most twice as late as without a fault. What a trainer tells so in its fault-free run, too, is its way of telling.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Reasons:
    return (f"{each.words}: {UNTRUE}" for each in evidence.impossible_times)


ASSUMPTION = Assumption(_broken, family="steps")
