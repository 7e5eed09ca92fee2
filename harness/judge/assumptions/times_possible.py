"""The times in the logs of processes contradict neither each other nor what the harness saw.

No step begins before its process begins, or before the previous step ends. No wait in a step is longer than the step.
No step ends on one rank before another rank begins the same step. No process does a step or writes a line after its
end. No two processes have the same durations, to the nanosecond, for five steps in a row. No worker is ready before its
predecessor at the same local rank has ended. No process logs a notice to leave before a fault gave one. The harness
sees a recovery after its logged time, by at most 5 s plus twice the usual delay. The harness never sees three saves in
a row over 2 s late and over twice as late as without a fault. A contradiction that fault-free runs share is ignored.
"""

from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Reasons:
    return (f"{each.words}: {UNTRUE}" for each in evidence.impossible_times)


ASSUMPTION = Assumption(_broken, family="steps")
