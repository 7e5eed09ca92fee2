"""The times that processes tell can be: they contradict neither each other nor what the harness saw.

No step begins before its process, or before the step before it was over. No step waits for longer than it takes. No
step ends on one rank before another rank has begun it. No process does a step or writes a line after its end. No two
processes take the same nanoseconds for five steps in a row. No worker is ready before its predecessor has ended. No
notice is seen before a fault gave one. The harness sees a recovery at most 5 s, and twice its usual delay, after the
reported time. It sees three saves in a row at most twice as late as without a fault. A contradiction that the
fault-free run has, too, is ignored.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Reasons:
    return (f"{each.words}: {UNTRUE}" for each in evidence.impossible_times)


ASSUMPTION = Assumption(_broken, family="steps")
