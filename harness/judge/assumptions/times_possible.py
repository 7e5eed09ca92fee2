"""The times in the logs of processes contradict neither each other nor what the harness saw.

No step begins before its process starts or the process's previous step ends, and no wait in a step is longer than the
step. No step ends on one rank before another rank begins it. No process does a step or writes a line after its end. No
two processes log the same five step times in a row, to the nanosecond. No worker is ready before the worker that it
replaces has ended. No process logs a preemption notice before a fault gives one. The harness sees a recovery at most 5
s plus twice its usual delay after the recovery is logged. The harness sees at least one of three saves in a row within
2 s or twice its longest delay without a fault. Time differences up to twice those of a fault-free run are ignored.
"""

from harness.evidence.usual import others_share
from harness.judge.assumption import Analysis, Assumption, Reasons
from harness.judge.thresholds import OTHERS_MOST
from harness.judge.verdict import UNTRUE


def _broken(evidence: Analysis) -> Reasons:
    run = evidence.run
    others = others_share(run, run.begin, run.end)
    why = f", or the harness was held up: other programs took {others:.0%} of the host's CPUs"
    why = UNTRUE + why * (others > OTHERS_MOST)
    return (f"{each.words}: {why}" for each in evidence.impossible_times)


ASSUMPTION = Assumption(_broken, family="steps")
